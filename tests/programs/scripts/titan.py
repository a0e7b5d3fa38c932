"""examples/train_titan.py, and what its ranks leave behind: checkpoints and validations, too."""

import sys
from pathlib import Path

import torch.distributed as dist
from helper import OUT, finish

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import train_titan

from trainmover_executor.worker.runtime import current_runtime

reach = current_runtime().reach

DUMP = Path(sys.argv[2]) if len(sys.argv) > 2 else OUT
ARGUMENTS = "--steps 60 --interval 20 --validate-every 12 --dim 32 --seq-len 32 --warmup 5"


class Session(train_titan.Session):
    def __init__(self, **state):
        super().__init__(**state)
        Trainer.session = self


class Trainer(train_titan.Trainer):
    def train_step(self, data):
        metrics = super().train_step(data)
        self.session.log(loss=metrics["loss"])
        return metrics

    def save(self):
        reach("program.saving")
        super().save()
        reach("program.saved")

    def validate(self):
        reach("program.validating")
        value = super().validate()
        reach("program.validated")
        return value


train_titan.Session = Session
trainer = Trainer(train_titan.options([*ARGUMENTS.split(), "--dump-folder", str(DUMP)]))
trainer.train()
whole = sorted(found.parent.name for found in DUMP.glob("step-*/.metadata"))
rank = dist.get_rank()
finish(
    rank,
    trainer.model,
    seen=trainer.ntokens_seen,
    checkpoints=whole,
    lines=(DUMP / "metrics.jsonl").read_text().splitlines() if rank == 0 else [],
)
