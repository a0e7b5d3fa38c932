"""Whether ranks under one wrapper hold the same: DDP makes replicas, unless the program parts them.

Local SGD takes optimizer steps with gradients that nobody reduced and averages parameters now and
then. Its ranks look like replicas and are none between two averages. A checksum of the parameters
goes with the votes of programs that may do so, and with the first of all; where it differs, ranks
are replicas no more. Nor are they where one rank alone keeps an average of the weights, or each
rank's optimizer has its share of the parameters or keeps what it needs for that (ZeRO by hand, Muon
as people write it): models and groups are compared with the first vote, and what optimizers keep as
soon as there is something. Nor once a rank sets its learning rate by what it alone sees: so a
checksum of the settings of optimizers and schedulers goes with all votes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from trainmover_executor.redundancy.layout import replicas_of
from trainmover_executor.state.packing.shards import local_of, made_of
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.units import sample_of

__all__ = ["SAYS_NOTHING", "LastChecksum", "Replicas"]

LastChecksum = Callable[[], tuple[int, int] | None]
"""The step that was completed last, and a checksum of parameters behind it; see ``StepTiming``."""

_EARLY_STEPS: Final = 3
"""Of the job, or of a joiner, in which parameters are compared; and what optimizers keep."""
_SMALL_BYTES: Final = 2 * 1024 * 1024
"""Of parameters: with an average of them and what optimizers keep they still go with a vote."""
_NONE: Final = 2**40
"""Above every checksum, and above the negative of each."""
SAYS_NOTHING: Final = (_NONE, _NONE, _NONE, _NONE, 0)
"""What a rank says that does not know."""


class Replicas:
    """Which ranks hold what this one holds.

    A checksum that differs in a plain DDP job is corrupt memory, and a matter for the detector
    ``numeric``. It says that the program parts its ranks only where the program may do that: in the
    first steps, with a communication hook, or with an optimizer's step behind ``no_sync``.
    Settings that differ are the program's doing at any time.

    Args:
        state: What the session knows.
        rank: This rank.
        world_size: How many there are. Ranks are compared where all are replicas of each other.
        last: The checksum of the step that was completed last.

    Attributes:
        parted: Whether ranks were found to differ; final.
    """

    def __init__(
        self, state: TrainingState, *, rank: int, world_size: int, last: LastChecksum
    ) -> None:
        self._state = state
        self._rank = rank
        self._world_size = world_size
        self._last = last
        self._wrappers: list[DistributedDataParallel] | None = None
        self._unsynchronized = self._compares_all = False
        self._frozen: list[torch.Tensor] = []
        self._origin = 0
        self._votes = 0
        self.parted = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks, this one included, that hold bitwise the same model and optimizer state."""
        if self.parted:
            return (self._rank,)
        return replicas_of(self._state.models, self._state.optimizers, rank=self._rank)

    def begin(self, *, committed: int, origin: int) -> None:
        """This rank takes part in training from now on.

        Args:
            committed: Steps completed by the job.
            origin: Steps that it counted as completed before its first one, in whose vote all
                parameters are compared; what optimizers keep is in the votes behind it.
        """
        wrappers = [
            module
            for model in self._state.models
            for module in model.modules()
            if isinstance(module, DistributedDataParallel)
        ]
        self._wrappers = wrappers if len(self.ranks) == self._world_size > 1 else []
        self._compares_all = committed == origin
        self._origin = origin
        # DDP averages no gradients of what was frozen when it was made.
        modules = [wrapper.module for wrapper in self._wrappers]
        parameters = [each for module in modules for each in module.parameters()]
        self._frozen = [each for each in parameters if not each.requires_grad]

    def before_optimizer(self) -> None:
        """An optimizer is about to take a step."""
        for each in self._wrappers or ():
            self._unsynchronized |= not each.require_forward_param_sync

    def _is_small(self) -> bool:
        """Whether all of the state could go with each vote; alike at all ranks."""
        modules = [module.module for module in self._wrappers or ()]
        parameters = [each for module in modules for each in module.parameters()]
        nbytes: int = sum(each.nbytes for each in parameters if _has_memory(each))
        return nbytes <= _SMALL_BYTES

    def _may_part(self) -> bool:
        return (
            self._unsynchronized
            or self._votes <= _EARLY_STEPS
            or any(each._comm_hooks for each in self._wrappers or ())  # noqa: SLF001 - no public name
        )

    def says(self, *, committed: int) -> list[int]:
        """What this rank says with a vote; the least of each number over all ranks answers it.

        Args:
            committed: Steps completed by the job, before the one that is voted for.
        """
        self._votes += 1
        said = self.says_after_failure(committed=committed)
        if self._wrappers and not self.parted:
            settings = self._checksum_of_settings(committed)
            said[2:4] = settings, -settings
            compared = [each for each in self._frozen if each.requires_grad]
            kept: list[Any] = []
            if self._compares_all:
                # Larger ranks that differ in what else they gave their sessions stay replicas: the
                # parameters of each are at the others, and would not be without.
                outline = self._state.outline(extras=self._is_small())
                compared, kept = self._state.parameters(), outline
            if 0 < committed - self._origin <= _EARLY_STEPS:
                # All ranks say this, a joiner too: so it is said in place of the last checksum.
                compared = self._state.parameters()
                kept = [*_kept_by(self._state.optimizers)]
            if compared:
                beginnings = _checksum_of_beginnings(compared, kept)
                said[:2] = beginnings, -beginnings
        self._compares_all = False
        return said

    def says_after_failure(self, *, committed: int) -> list[int]:
        """The same where ranks may be in several places of the program.

        One may have set its learning rate for a step or an epoch that another has yet to begin: so
        settings are compared in votes alone.

        Args:
            committed: Steps completed by the job.
        """
        said = list(SAYS_NOTHING)
        if self._wrappers and not self.parted:
            last = self._last() if self._may_part() else None
            if last is not None and last[0] == committed - 1:
                said[:2] = last[1], -last[1]
        said[4] = -int(self.parted)
        return said

    def heard(self, least: Sequence[int]) -> str:
        """What this rank learned now of ranks that hold different state, for people; else empty.

        Args:
            least: The least of what all ranks said.
        """
        low, high, settings_low, settings_high, parted = least
        if self.parted:
            return ""
        if settings_low not in {_NONE, -settings_high}:
            what = "optimizers or schedulers are set differently"
        elif low not in {_NONE, -high} or parted:
            what = "parameters differ, or what optimizers keep of them"
        else:
            return ""
        self.parted = True
        return what

    def _checksum_of_settings(self, committed: int) -> int:
        """Of a group of an optimizer, or of a scheduler, and of a parameter's tensors' shapes.

        With each step it is the turn of the next: a model may have hundreds, and this is on the
        path of a step.
        """
        settings = self._state.compared_settings(committed)
        kept = _shapes_kept(self._state.optimizers, at=committed)
        return zlib.crc32(repr([*_numbers_in(settings), kept]).encode())


def _checksum_of_beginnings(parameters: Sequence[torch.Tensor], kept: Sequence[Any] = ()) -> int:
    """Of what parameters begin with: an average of weights may have been made before DDP was.

    Ranks that set their seed by their rank have another one each then.

    Args:
        parameters: Which.
        kept: What else goes into it.
    """
    found = [sample_of(local_of(each)) for each in parameters if _has_memory(each)]
    return zlib.crc32(repr([found, kept]).encode())


def _kept_by(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[str, int]]:
    """What optimizers keep of each parameter, by how its tensors begin."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                tensors = _tensors_kept(optimizer, parameter)
                yield from ((name, sample_of(local_of(each))) for name, each in tensors)
                yield "", 0  # else another parameter's would look the same


def _shapes_kept(
    optimizers: Sequence[torch.optim.Optimizer], *, at: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Which tensors are kept of the ``at``-th parameter, counted round and round."""
    groups = [(each, group["params"]) for each in optimizers for group in each.param_groups]
    at %= max(1, sum(len(parameters) for _, parameters in groups))
    for optimizer, parameters in groups:
        if at < len(parameters):
            kept = _tensors_kept(optimizer, parameters[at])
            return [(name, tuple(each.shape)) for name, each in kept]
        at -= len(parameters)
    return []


def _tensors_kept(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor
) -> list[tuple[str, torch.Tensor]]:
    kept = optimizer.state.get(parameter, {})  # it is a defaultdict: looking must not change it
    found = [(str(name), each) for name, each in kept.items() if isinstance(each, torch.Tensor)]
    return sorted(((name, each) for name, each in found if _has_memory(each)), key=itemgetter(0))


def _has_memory(parameter: torch.Tensor) -> bool:
    return not (is_lazy(parameter) or parameter.is_meta or made_of(parameter) is not None)


def _numbers_in(value: Any) -> Iterator[int | float]:
    match value:
        case int() | float():
            yield value
        case torch.Tensor() if value.numel() == 1 and value.device.type == "cpu":
            yield value.item()  # of a GPU it would have the step wait
        case Mapping():
            for key in sorted(value, key=str):
                yield from _numbers_in(value[key])
        case list() | tuple():
            for each in value:
                yield from _numbers_in(each)
