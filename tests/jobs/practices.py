"""What real scripts do beside forward and backward; run by tests on real ranks."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.checkpoint import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainmover import Session
from trainmover_executor.training.body.step import Step
from trainmover_executor.worker.runtime import current_runtime

WIDTH = 16


class Shuffled:
    """A loader that shuffles with a generator of its own and resumes by its own state."""

    def __init__(self, rank: int) -> None:
        self._generator = torch.Generator().manual_seed(rank)
        self._order: list[int] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            if not self._order:
                self._order = torch.randperm(11, generator=self._generator).tolist()
            index = self._order.pop()
            yield torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(index))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state(), "order": list(self._order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])
        self._order = list(state["order"])


class Net(nn.Module):
    """What all of them train."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, WIDTH)
        )

    # Dynamo compiles no code of torch's own that it meets on its way through DDP.
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layers(batch)


class Plain:
    """One step of DDP; the others change one habit each."""

    dtype = torch.float32

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = DistributedDataParallel(Net().to(self.dtype))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.extras: dict[str, Any] = {}

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.to(self.dtype)
        return (self.model(batch) - batch).float().pow(2).mean()

    def step(self, step: Step, batch: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss

    def between(self, session: Session, step: Step, wait: Callable[[], None]) -> None:
        """What is done after a step."""

    def over(self, step: Step) -> bool:
        """Whether the loop is left after this step."""
        return False


class Accumulating(Plain):
    """Two microbatches; gradients are exchanged with the second only. Weights are averaged."""

    def __init__(self) -> None:
        super().__init__()
        average = get_ema_multi_avg_fn(0.9)
        self.ema = AveragedModel(self.model, multi_avg_fn=average, use_buffers=True)
        self.extras = {"ema": self.ema}

    def step(self, step: Step, batch: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=False)
        total = torch.zeros(())
        for index, part in enumerate(step.microbatches(2)):
            assert isinstance(self.model, DistributedDataParallel)
            with self.model.no_sync() if index == 0 else contextlib.nullcontext():
                loss = self.loss(part) / 2
                loss.backward()
            total = total + loss.detach()
        self.optimizer.step()
        self.ema.update_parameters(self.model)
        return total


class Scaling(Plain):
    """Mixed precision with a scaler."""

    init_scale = 2.0**10

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.init_scale, growth_interval=20)
        self.extras = {"scaler": self.scaler}

    def step(self, step: Step, batch: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = self.loss(batch)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


class Skipping(Scaling):
    """The scale is so high at first that optimizer steps are skipped."""

    init_scale = 2.0**40


class HalfPrecision(Plain):
    """Parameters, gradients and moments in bfloat16."""

    dtype = torch.bfloat16


class Compiled(Plain):
    """torch.compile around DDP; standbys trace it in their shadow iterations."""

    backend = "aot_eager"

    def __init__(self) -> None:
        super().__init__()
        self.forward = torch.compile(self.model, backend=self.backend)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        from torch._dynamo.utils import counters

        loss = (self.forward(batch) - batch).pow(2).mean()
        assert counters["stats"]["unique_graphs"], "nothing was compiled"
        return loss


class Inductor(Compiled):
    """The same down to machine code: the first step takes most of a minute."""

    backend = "inductor"


class TwoOptimizers(Plain):
    """One optimizer for each half of the model, stepped one after the other."""

    def __init__(self) -> None:
        super().__init__()
        first, second = list(self.model.parameters())[:2], list(self.model.parameters())[2:]
        self.optimizer = torch.optim.AdamW(first, 1e-2)
        self.second = torch.optim.SGD(second, 1e-2, momentum=0.9, nesterov=True)

    def step(self, step: Step, batch: torch.Tensor) -> torch.Tensor:
        self.second.zero_grad()
        loss = super().step(step, batch)
        self.second.step()
        return loss


class Evaluating(Plain):
    """Every third step the model is evaluated on data of its own, by all ranks together.

    And every step's loss is added up once the optimizer is done, for whoever watches. DDP's next
    forward pass after an evaluation would leave out to send the buffers around, of which
    BatchNorm has some.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(WIDTH), Net()))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.extras = {}
        self.results: list[float] = []

    def step(self, step: Step, batch: torch.Tensor) -> torch.Tensor:
        loss = super().step(step, batch)
        dist.all_reduce(loss.detach().clone())
        return loss

    def between(self, session: Session, step: Step, wait: Callable[[], None]) -> None:
        def evaluate() -> float:
            wait()
            self.model.eval()
            with torch.no_grad():
                error = self.loss(torch.randn(8, WIDTH)).reshape(1)
            self.model.train()
            dist.all_reduce(error)
            return error.item()

        if step.index % 3 == 2:
            result = session.between_steps(evaluate)
            if result is not None and not session.is_shadow:
                self.results.append(result)


class Sharded(Evaluating):
    """FSDP2, with a replica of each shard. An evaluation leaves the root's parameters gathered.

    And stand-ins for what a lost machine would have sent make the model raise in its forward pass.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for layer in (self.model.layers[0], self.model.layers[3]):
            fully_shard(layer, mesh=mesh)
        self.model.layers[2].register_forward_pre_hook(self._check)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2, foreach=False)
        self.extras = {}
        self.results = []

    @staticmethod
    def _check(_module: nn.Module, _inputs: tuple[torch.Tensor, ...]) -> None:
        if current_runtime().latch.is_set:
            raise ArithmeticError("activations are out of their bounds")


class Checkpointing(Plain):
    """Every twentieth step all ranks save a sharded checkpoint together."""

    def between(self, session: Session, step: Step, wait: Callable[[], None]) -> None:
        if step.index % 20 == 5 and not session.is_shadow:
            with tempfile.TemporaryDirectory() as folder:
                state = {"model": self.model.state_dict()}
                session.between_steps(lambda: save(state, checkpoint_id=folder))


class Leaving(Plain):
    """The loop is left by ``break``, and the rest of the script goes on."""

    def over(self, step: Step) -> bool:
        return step.index == 140


class Branching(nn.Module):
    """Takes one of two ways, by the data."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Net(), Net()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.one(batch) if batch[0, 0] > 0 else self.other(batch)


class Unused(Plain):
    """DDP looks for parameters without gradients, sends half as many bytes, and copies none."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(
            Branching(), find_unused_parameters=True, gradient_as_bucket_view=True
        )
        model.register_comm_hook(None, fp16_compress_hook)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        self.extras = {}


HABITS: dict[str, type[Plain]] = {
    "stateful": Plain,
    "accumulating": Accumulating,
    "scaling": Scaling,
    "skipping": Skipping,
    "bf16": HalfPrecision,
    "compiled": Compiled,
    "two_optimizers": TwoOptimizers,
    "evaluating": Evaluating,
    "sharded": Sharded,
    "checkpointing": Checkpointing,
    "leaving": Leaving,
    "unused": Unused,
}
SLOW_HABITS: dict[str, type[Plain]] = {"inductor": Inductor}
"""Those that need a C++ compiler and its time."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("habit", choices=[*HABITS, *SLOW_HABITS])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--hold-at", type=int, default=-1)
    parser.add_argument("--hold-between", action="store_true", help="after it, not in it")
    parser.add_argument("--gate", type=Path, help="file that opens the gate at step --hold-at")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("trainmover")
    rank = dist.get_rank()
    program = {**HABITS, **SLOW_HABITS}[options.habit]()
    optimizers = [program.optimizer]
    if isinstance(program, TwoOptimizers):
        optimizers.append(program.second)
    torch.manual_seed(100 + rank)
    import halfway  # beside this script, which tests import as a module of a package

    halfway.install()
    session = Session(model=program.model, optimizer=optimizers, **program.extras)
    for step in session.steps(Shuffled(rank), max_steps=options.steps):

        def wait(index: int = step.index) -> None:
            if index == options.hold_at and not session.is_shadow:
                options.gate.with_suffix(f".{rank}").touch()
                while not options.gate.exists():
                    time.sleep(0.005)

        with step as batch:
            if not options.hold_between:
                wait()
            session.log(loss=program.step(step, batch))
        if not step.committed:
            continue
        program.between(session, step, wait if options.hold_between else lambda: None)
        if program.over(step) and not session.is_shadow:
            break
    dist.barrier()


if __name__ == "__main__":
    main()
