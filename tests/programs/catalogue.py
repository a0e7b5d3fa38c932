"""The programs of ``scripts``: how long they are, and where they are disturbed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.programs.drive import WORLD, Spot

__all__ = ["CATALOGUE", "GAPS", "Program"]

_POINTS = (
    "step.next",
    "step.begin",
    "vote.begin",
    "vote.passed",
    "optimizer.before",
    "optimizer.after",
    "step.taken",
)
_WINDOW = 12

_OWN_GRADIENTS = (
    "gradients that a rank accumulates under no_sync are lost with it; the plan fails and says so"
)


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        steps: Steps that it takes.
        ends: Steps after which a call of ``session.steps`` ends.
        between: It works between steps.
        points: Where a machine is killed.
        no_crash: Why it does not survive a crash, or is not known to; see ``GAPS``.
        usual: It is part of the normal run. The others are much like one of these, and are run in
            the soak.
    """

    steps: int
    ends: tuple[int, ...] = ()
    between: bool = False
    points: tuple[str, ...] = _POINTS
    no_crash: str = ""
    usual: bool = True

    def all_points(self) -> tuple[str, ...]:
        """All fail-points that it passes."""
        return (*self.points, "between.begin", "between.cast") if self.between else self.points

    def spot(self, point: str, *, seed: str, rank: int | None = None) -> Spot:
        """Some step of the beginning, some rank."""
        chance = random.Random(f"{point} {seed}")
        step = chance.randrange(8, 20)
        who = chance.randrange(WORLD) if rank is None else rank
        if point.startswith("between.") and self.ends:
            step = self.ends[0]
        return Spot(point, step, who, steps=_WINDOW)


CATALOGUE = {
    "tracked": Program(60, usual=False),
    "tracked_list": Program(60),
    "counter": Program(100, between=True),
    "epochs": Program(80, ends=(16, 32), between=True),
    "phases": Program(110, ends=(40,), usual=False),
    "twice": Program(100, ends=(50,), usual=False),
    "trainer": Program(120, ends=(40, 80), usual=False),
    "nested": Program(120, ends=(4, 40, 41)),
    "zero_length": Program(95, ends=(10, 30)),
    "early_stopping": Program(152, ends=(20, 40), between=True),
    "best_in_memory": Program(100, between=True, usual=False),
    "best_weights": Program(100, between=True, usual=False),
    "ema_dict": Program(100, between=True, usual=False),
    "feature_mean": Program(100, usual=False),
    "two_loaders": Program(120, ends=(60,), usual=False),
    "streams": Program(100, usual=False),
    "hidden_state": Program(100, ends=(50,), usual=False),
    "plateau": Program(120, ends=(30, 90), between=True, usual=False),
    "enumerate_lr": Program(110, usual=False),
    "progress": Program(100, usual=False),
    "islice": Program(90, usual=False),
    "spreads_statistics": Program(96, ends=(32, 64)),
    "no_optimizer": Program(60, points=tuple(p for p in _POINTS if "optimizer" not in p)),
    "draws_twice": Program(90),
    "snapshot_if_there": Program(72, ends=(8, 16), usual=False),
    "logs_every": Program(129, ends=(43, 86), between=True, usual=False),
    "counts_behind": Program(60, ends=(5, 10, 15)),
    "counting_iterator": Program(90, ends=(30, 60), usual=False),
    "averages_parameters": Program(60, between=True, usual=False),
    "adapts_itself": Program(60, usual=False),
    "reads_behind": Program(70, usual=False),
    "meters": Program(105, usual=False),
    "keeps_newest": Program(90, ends=(15, 30)),
    "engine": Program(120, ends=(30, 60), usual=False),
    "own_containers": Program(90, ends=(30, 60)),
    "metrics": Program(46, between=True),
    "collectives": Program(92, between=True, usual=False),
    "sharded_metrics": Program(90, ends=(30, 60), between=True, usual=False),
    "bars": Program(120, ends=(30, 60, 90), usual=False),
    "pinn": Program(90, usual=False),
    "reference": Program(120, ends=(30, 60), between=True, usual=False),
    "own_generators": Program(100),
    "gan": Program(100),
    "fifth_step": Program(100, usual=False),
    "accumulate": Program(110, between=True),
    "no_sync": Program(102, no_crash=_OWN_GRADIENTS),
    "several_steps": Program(80, usual=False),
    "lbfgs": Program(60),
    "sam": Program(100),
    "scaler": Program(100),
    "ema": Program(100),
    "hand_decay": Program(100, usual=False),
    "hooks": Program(100, usual=False),
    "stateful_hooks": Program(100, usual=False),
    "mean_of_loss": Program(100, usual=False),
    "recurrent": Program(80, usual=False),
    "looks": Program(90, usual=False),
    "iterable": Program(100),
    "workers": Program(90, ends=(30, 60)),
    "stateful": Program(90, ends=(30, 60)),
    "fsdp": Program(100),
    "main_function": Program(100, usual=False),
    "one_epoch": Program(120, ends=(40, 80), between=True, usual=False),
    "autocast": Program(100, usual=False),
    "train_step": Program(100, usual=False),
    "while_next": Program(100, ends=(30, 60, 90)),
    "averaged": Program(100, usual=False),
    "last_loss": Program(90, usual=False),
    "moco": Program(90, usual=False),
    "curriculum": Program(90, ends=(25, 55), usual=False),
    "replay": Program(90, usual=False),
    "long_replay": Program(90, usual=False),
    "callbacks": Program(90, ends=(30, 60), usual=False),
    "unfreeze": Program(90, usual=False),
    "difficulty": Program(90, usual=False),
    "data_objects": Program(90, usual=False),
    "ragged": Program(90, ends=(60,)),
    "second_names": Program(90),
    "tree_search": Program(90, usual=False),
    "resumable_loader": Program(90, ends=(30, 60)),
    "swaps_between": Program(90, ends=(15, 30, 45, 60, 75), between=True),
    "new_parameter": Program(90),
    "counts_in_extra": Program(90),
    "grows": Program(90, usual=False),
    "seeded_loader": Program(72, ends=(8, 16, 24)),
    "longer_sequences": Program(65, ends=(35,), usual=False),
    "spectral": Program(90, ends=(30, 60), usual=False),
    "prefetcher": Program(90, ends=(30, 60)),
    "preconditioned": Program(90, ends=(30, 60), usual=False),
    "codebook": Program(60),
    "wide": Program(110, usual=False),
    "windows": Program(90, ends=(30, 60), usual=False),
    "history": Program(90, ends=(30, 60), between=True),
    "stages": Program(90, usual=False),
    "modules": Program(90, usual=False),
    "deep": Program(90, usual=False),
    "imagenet": Program(120, ends=(40, 80), between=True),
    "nanogpt": Program(100, ends=(30,), between=True),
    "buckets": Program(90, ends=(30, 60), usual=False),
    "swa": Program(120, ends=(30, 60, 90), usual=False),
    "recommender": Program(90, usual=False),
    "maml": Program(90, ends=(30, 60), usual=False),
    "multigpu": Program(120, ends=(40, 80), usual=False),
    "mixup": Program(96, ends=(32, 64), between=True, usual=False),
    "normalizer": Program(90, usual=False),
    "local_norms": Program(90, ends=(30, 60), usual=False),
    "dqn": Program(90),
    "guarded": Program(90, usual=False),
    "attributes": Program(90, usual=False),
    "local_head": Program(90, usual=False),
    "evaluates_first": Program(90, ends=(10, 30, 60), between=True, usual=False),
    "pops": Program(100, usual=False),
    "adversarial": Program(90, ends=(30, 60), usual=False),
    "checkpointed": Program(90, ends=(30, 60), usual=False),
    "error_feedback": Program(90, usual=False),
    "local_sgd": Program(90),
    "post_local_sgd": Program(90, usual=False),
    "own_rates": Program(90, usual=False),
    "own_progress": Program(90, usual=False),
    "actor_critic": Program(90, usual=False),
    "diloco": Program(90, usual=False),
    "decays_in_front": Program(80, usual=False),
    "writes_in_front": Program(80, usual=False),
    "restarts_momentum": Program(80, usual=False),
    "by_hand": Program(90, usual=False),
    "clipped": Program(90, usual=False),
    "lookahead": Program(90, usual=False),
    "odd_optimizers": Program(90),
    "ring_memory": Program(60),
    "sam_class": Program(90, usual=False),
    "muon": Program(90, usual=False),
    "shared_muon": Program(60),
    "zero_by_hand": Program(60, usual=False),
    "first_rank_ema": Program(60),
    "first_rank_copies": Program(60),
    "first_rank_meter": Program(60, usual=False),
    "array_memory": Program(60, usual=False),
    "between_writes": Program(90, between=True),
    "own_work": Program(96, ends=(12, 24), between=True),
    "ppo": Program(96, ends=(8, 40), between=True),
    "randperm": Program(90, ends=(30, 60), usual=False),
    "perm_epochs": Program(90, ends=(30, 60), usual=False),
    "hard_mining": Program(90, ends=(30, 60), usual=False),
    "staged_sampler": Program(90, ends=(30, 60), usual=False),
    "stateful_sampler": Program(90, ends=(30, 60), usual=False),
    "growing": Program(90, ends=(30, 60), usual=False),
    "inference": Program(90, ends=(30, 60), between=True, usual=False),
    "kfold": Program(75, ends=(25, 50), between=True, usual=False),
    "lr_finder": Program(100, ends=(10, 40), between=True, usual=False),
    "byol": Program(90, ends=(30, 60), usual=False),
    "late_buffers": Program(60, ends=(30,), usual=False),
    "own_loader": Program(80, ends=(10, 20, 40), usual=False),
    "counts_elsewhere": Program(80, ends=(10, 20, 40), usual=False),
    "master_weights": Program(60, ends=(30,), usual=False),
    "sharded_average": Program(60, ends=(30,), usual=False),
    "global_state": Program(80, ends=(10, 20, 40)),
    "mixture": Program(90),
    "semi_supervised": Program(90),
    "endless": Program(90, usual=False),
    "drawn_generators": Program(90, usual=False),
    "zipped": Program(90, between=True, usual=False),
    "sent_to": Program(90, usual=False),
    "one_iterator": Program(90, ends=(30, 60), usual=False),
    "batch_ahead": Program(93, ends=(31, 62), usual=False),
    "points": Program(90, usual=False),
    "bucket_views": Program(90, ends=(30, 60), usual=False),
    "long_sampler": Program(84, ends=(12, 36), usual=False),
    "schedulers": Program(90, ends=(30, 60), usual=False),
    "registry": Program(90, ends=(30, 60), usual=False),
}

GAPS = {
    "no_sync": Spot("step.taken", 13, 1),
}
"""Crashes that programs are known not to survive."""
