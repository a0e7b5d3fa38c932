"""Train a small language model with a trainer of torchtitan's shape, movable by TrainMover.

    trainmover run --slots 2 --standbys 2 examples/train_titan.py --steps 200

FSDP2 over a mesh of named dimensions (and tensor parallel with ``--tp 2`` on four slots), meta
initialization, a StatefulDataLoader over documents that are packed into sequences, accumulation
with a loss over all tokens, warm-up, clipping, validation, checkpoints with
torch.distributed.checkpoint, and a start from the newest one.

The lines marked with (*) are all that differs from the trainer without TrainMover.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torchdata.stateful_dataloader import StatefulDataLoader

from trainmover import Session  # (*)

VOCABULARY = 256


@dataclass
class ParallelDims:
    """How many ranks share what; the data is divided along ``dp_shard``."""

    dp_shard: int
    tp: int
    world_size: int

    def __post_init__(self):
        if self.dp_shard == -1:
            self.dp_shard = self.world_size // self.tp
        if self.dp_shard * self.tp != self.world_size:
            raise ValueError(f"{self.dp_shard} x {self.tp} is not {self.world_size} ranks")

    def build_mesh(self):
        names = ("dp_shard", "tp")
        return init_device_mesh("cpu", (self.dp_shard, self.tp), mesh_dim_names=names)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.head_dim = dim // heads
        self.wq, self.wk, self.wv = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        heads = [w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv)]
        q, k, v = (each.transpose(1, 2) for each in heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention, self.feed_forward = Attention(dim, heads), FeedForward(dim, 2 * dim)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, dim, layers, heads, seq_len):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, dim)
        self.positions = nn.Embedding(seq_len, dim)
        self.layers = nn.ModuleDict({str(i): Block(dim, heads) for i in range(layers)})
        self.norm = nn.RMSNorm(dim)
        self.output = nn.Linear(dim, VOCABULARY, bias=False)

    def init_weights(self):
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.ones_(parameter)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens) + self.positions.weight
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x))


def parallelize(model, mesh, dims):
    if dims.tp > 1:
        columns, rows = ColwiseParallel, RowwiseParallel
        plan = {f"attention.{name}": columns() for name in ("wq", "wk", "wv")}
        plan |= {"feed_forward.w1": columns(), "feed_forward.w3": columns()}
        plan |= {"attention.wo": rows(), "feed_forward.w2": rows()}
        for block in model.layers.values():
            parallelize_module(block, mesh["tp"], plan)
        parallelize_module(model, mesh["tp"], {"output": columns(output_layouts=Replicate())})
    for block in model.layers.values():
        fully_shard(block, mesh=mesh["dp_shard"])
    fully_shard(model, mesh=mesh["dp_shard"])


def clip_grad_norm(parameters, max_norm):
    """The norm over parameters of several meshes: with tensor parallel there are two."""
    of_mesh = defaultdict(list)
    for parameter in parameters:
        of_mesh[parameter.device_mesh].append(parameter)
    norms = [
        nn.utils.get_total_norm([each.grad for each in group]).full_tensor()
        for group in of_mesh.values()
    ]
    norm = torch.stack(norms).norm()
    for group in of_mesh.values():
        nn.utils.clip_grads_with_norm_(group, max_norm, norm)
    return norm


class Documents(torch.utils.data.IterableDataset):
    """Texts of a generator, each rank its share, packed into sequences of tokens."""

    SUBJECTS = ("the loss", "a gradient", "one rank", "the joiner", "this step", "a shard")
    VERBS = ("follows", "waits for", "replaces", "sends", "keeps", "votes on")

    def __init__(self, dp_rank, dp_world_size, seq_len, first=0):
        self.dp_rank, self.dp_world_size, self.seq_len = dp_rank, dp_world_size, seq_len
        self.document, self.buffer = first, []

    def _text(self, number):
        generator = torch.Generator().manual_seed(number)
        words = torch.randint(6, (40, 3), generator=generator).tolist()
        lines = (f"{self.SUBJECTS[s]} {self.VERBS[v]} {self.SUBJECTS[o]}. " for s, v, o in words)
        return "".join(lines)

    def __iter__(self):
        while True:
            while len(self.buffer) <= self.seq_len:
                number = self.document * self.dp_world_size + self.dp_rank
                self.document += 1
                self.buffer += self._text(number).encode()
            tokens = torch.tensor(self.buffer[: self.seq_len + 1])
            self.buffer = self.buffer[self.seq_len + 1 :]
            yield {"input": tokens[:-1]}, tokens[1:]

    def state_dict(self):
        return {"document": self.document, "buffer": self.buffer}

    def load_state_dict(self, state):
        self.document, self.buffer = state["document"], list(state["buffer"])


class Trainer:
    """What torchtitan's Trainer does, and in its order."""

    def __init__(self, config):
        self.config = config
        dist.init_process_group("gloo")
        self.dims = ParallelDims(config.dp_shard, config.tp, dist.get_world_size())
        self.mesh = self.dims.build_mesh()
        data = self.mesh["dp_shard"]
        self.dp_rank, self.dp_group = data.get_local_rank(), data.get_group()
        torch.manual_seed(config.seed)
        with torch.device("meta"):
            model = Transformer(config.dim, config.layers, config.heads, config.seq_len)
        parallelize(model, self.mesh, self.dims)
        model.to_empty(device="cpu")
        with torch.no_grad():
            model.init_weights()
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.lr_factor)
        self.dataloader = self.loader(first=0)
        self.step = self.ntokens_seen = 0
        self.folder = Path(config.dump_folder)
        self.metrics = None

    def lr_factor(self, step):
        """Linear warm-up, and linear decay to the end."""
        warmup, steps = self.config.warmup, self.config.steps
        return (step + 1) / warmup if step < warmup else max(0.0, (steps - step) / (steps - warmup))

    def loader(self, first):
        dataset = Documents(self.dp_rank, self.dims.dp_shard, self.config.seq_len, first)
        return StatefulDataLoader(dataset, batch_size=self.config.local_batch_size)

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "lr_scheduler": self.scheduler.state_dict(),
            f"dataloader_{self.dp_rank}": json.dumps(self.dataloader.state_dict()),
            "train_state": {"step": self.step, "ntokens_seen": self.ntokens_seen},
        }

    def save(self):
        dcp.save(self.state(), checkpoint_id=self.folder / f"step-{self.step}")

    def load(self):
        whole = [int(each.parent.name[5:]) for each in self.folder.glob("step-*/.metadata")]
        newest = torch.tensor(max(whole, default=0))
        dist.broadcast(newest, src=0)
        if newest:
            saved = self.state()
            dcp.load(saved, checkpoint_id=self.folder / f"step-{newest}")
            set_state_dict(
                self.model,
                self.optimizer,
                model_state_dict=saved["model"],
                optim_state_dict=saved["optimizer"],
            )
            self.scheduler.load_state_dict(saved["lr_scheduler"])
            self.dataloader.load_state_dict(json.loads(saved[f"dataloader_{self.dp_rank}"]))
            self.step, self.ntokens_seen = saved["train_state"].values()

    # -- training ---------------------------------------------------------------------------------

    def loss(self, inputs, labels, tokens):
        predicted = self.model(inputs).flatten(0, 1)
        return F.cross_entropy(predicted, labels.flatten(), reduction="sum") / tokens

    def summed(self, value):
        value = torch.as_tensor(value).detach().clone()
        dist.all_reduce(value, group=self.dp_group)
        return value

    def train_step(self, data):
        self.optimizer.zero_grad()
        batches = list(islice(data, self.config.accumulate))
        tokens = self.summed(sum(labels.numel() for _, labels in batches))
        total = torch.zeros(())
        for number, (batch, labels) in enumerate(batches, start=1):
            self.model.set_requires_gradient_sync(number == len(batches))
            # FSDP averages gradients over the ranks, and the loss is one over all of their tokens.
            loss = self.loss(batch["input"], labels, tokens) * self.dims.dp_shard
            loss.backward()
            total += loss.detach()
            self.ntokens_seen += labels.numel()
        norm = clip_grad_norm(self.model.parameters(), self.config.max_norm)
        lr = self.scheduler.get_last_lr()[0]
        self.optimizer.step()
        self.scheduler.step()
        average = self.summed(total) / self.dims.dp_shard
        return {"loss": average.item(), "grad_norm": norm.item(), "lr": lr}

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        batches = iter(self.loader(first=10**6))
        losses = [self.loss(b["input"], y, y.numel()) for b, y in (next(batches) for _ in range(4))]
        self.model.train()
        return self.summed(sum(losses)).item() / (4 * self.dims.dp_shard)

    def after_step(self):
        """What torchtitan's loop does behind a step: a checkpoint, and a validation."""
        if self.step % self.config.interval == 0 or self.step == self.config.steps:
            self.save()
        return self.validate() if self.step % self.config.validate_every == 0 else None

    def log(self, loss, **values):
        """Rank 0's, to a file; a line of the console for each tenth step."""
        if dist.get_rank() == 0:
            if self.metrics is None:
                self.metrics = (self.folder / "metrics.jsonl").open("a", buffering=1)
            print(json.dumps({"step": self.step, "loss": loss, **values}), file=self.metrics)
            if self.step % 10 == 0:
                print(f"step: {self.step:4d}  loss: {loss:8.5f}", flush=True)

    def train(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.load()
        config = self.config
        session = Session(  # (*)
            model=self.model,  # (*)
            optimizer=self.optimizer,  # (*)
            scheduler=self.scheduler,  # (*)
        )  # (*)
        for step in session.steps(  # (*)
            self.dataloader,  # (*)
            max_steps=config.steps,  # (*)
            start_step=self.step,  # (*)
            batches_per_step=config.accumulate,  # (*)
        ):  # (*)
            with step as batches:  # (*)
                self.step += 1
                metrics = self.train_step(batches)
            metrics["validation"] = session.between_steps(self.after_step)  # (*)
            self.log(**metrics)


def options(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dump-folder", default="out/train_titan")
    parser.add_argument("--interval", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--validate-every", type=int, default=25)
    parser.add_argument("--dp-shard", type=int, default=-1)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--local-batch-size", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    Trainer(options()).train()
