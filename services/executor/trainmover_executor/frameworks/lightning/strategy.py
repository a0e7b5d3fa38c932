"""How a Lightning trainer reaches the other ranks: through the session's process group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.loops.optimization.manual import ManualResult
from lightning.pytorch.strategies import DDPStrategy
from torchmetrics.utilities.distributed import gather_all_tensors

from trainmover_executor.frameworks.lightning.together import Together, tell_rank
from trainmover_executor.training.session import Session
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Environment", "MovableStrategy"]


class Environment(ClusterEnvironment):  # type: ignore[misc] # Lightning's types are not followed
    """Ranks as the job numbers them.

    Args:
        runtime: This rank's.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._layout = runtime.membership.layout

    creates_processes_externally = True
    main_address = "127.0.0.1"  # nobody connects there: the session has links of its own
    main_port = 0

    @staticmethod
    def detect() -> bool:
        """Only a trainer of TrainMover asks for it."""
        return False

    def world_size(self) -> int:
        """Ranks of the job."""
        return self._layout.world_size

    def set_world_size(self, size: int) -> None:
        """It is the job's."""

    def global_rank(self) -> int:
        """This rank."""
        return self._runtime.rank

    def set_global_rank(self, rank: int) -> None:
        """It is the job's."""

    def local_rank(self) -> int:
        """This rank among those of its slot."""
        return self._runtime.rank % self._layout.ranks_per_slot

    def node_rank(self) -> int:
        """The slot."""
        return self._layout.slot_of(self._runtime.rank)


class MovableStrategy(DDPStrategy):  # type: ignore[misc] # Lightning's types are not followed
    """DistributedDataParallel in the session's process group.

    Args:
        runtime: This rank's.
        together: Collectives outside of a step's body.
        options: Those of ``DistributedDataParallel``.
    """

    def __init__(self, runtime: Runtime, together: Together, **options: Any) -> None:
        super().__init__(cluster_environment=Environment(runtime), **options)
        self._runtime = runtime
        self._together = together

    def _configure_launcher(self) -> None:
        """TrainMover has started the processes."""

    def setup_distributed(self) -> None:
        """Make the process group."""
        reset_seed()
        self.set_world_ranks()
        if not dist.is_initialized():
            Session.init()

    def set_world_ranks(self) -> None:
        """They are the job's."""
        tell_rank(self._runtime)

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first rank, and no shadow of it."""
        return self._runtime.rank == 0 and not self._runtime.sandboxed

    # -- a step ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Gradients are synchronized in each batch of an accumulation.

        Those that a rank has alone are lost with it.
        """
        yield

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """See ``Strategy.training_step``; what it returned is part of the state at the vote."""
        output = super().training_step(*args, **kwargs)
        state, module = self._together.state, self.lightning_module
        if state is not None:
            state.output = (
                ClosureResult.from_training_step_output(
                    output, module.trainer.accumulate_grad_batches
                ).asdict()
                if module.automatic_optimization
                else ManualResult.from_training_step_output(output).asdict()
            )
        return output

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Forward and backward pass, clipping, and then the optimizer's step.

        Lightning has the optimizer call the closure. A step is voted on in front of the optimizer,
        when the gradients are there.
        """
        module = model or self.lightning_module
        if getattr(self.precision_plugin, "scaler", None) is not None:  # it does the same
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        result = closure()
        self.precision_plugin._after_closure(module, optimizer)  # noqa: SLF001 - hooks and clipping
        optimizer.step(**kwargs)
        return result

    # -- collectives -----------------------------------------------------------------------------

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """See ``Strategy.barrier``."""
        self._together.call(partial(super().barrier, *args, **kwargs))

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """See ``Strategy.broadcast``."""
        return self._together.call(partial(super().broadcast, obj, src), otherwise=obj)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """See ``Strategy.reduce``; ``tensor`` stays as it is."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        reduce = super().reduce
        return self._together.call(
            lambda: reduce(tensor.clone(), group, reduce_op), otherwise=tensor
        )

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> Any:
        """See ``Strategy.all_gather``."""
        world = self.world_size
        return self._together.call(
            partial(super().all_gather, tensor, group, sync_grads),
            otherwise=torch.stack([tensor.detach()] * world),
        )

    def gather_metric(self, value: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        """How metrics of torchmetrics synchronize, in place of their own way past the strategy."""
        gathered: list[torch.Tensor] = self._together.call(
            partial(gather_all_tensors, value, group), otherwise=[value] * self.world_size
        )
        return gathered

    # -- checkpoints -----------------------------------------------------------------------------

    def remove_checkpoint(self, filepath: Any) -> None:
        """See ``Strategy.remove_checkpoint``; by all ranks at the same place."""
        self._together.call(partial(super().remove_checkpoint, filepath))
