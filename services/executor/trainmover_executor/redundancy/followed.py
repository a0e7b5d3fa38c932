"""What a followed rank tells its follower with each vote."""

from __future__ import annotations

from typing import Any, Final

from trainmover_executor.state.handing_over.written import WrittenElsewhere, beginning_of
from trainmover_executor.state.packing.memory import on_host
from trainmover_executor.state.packing.shards import local_of
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.units import StateUnits

__all__ = ["Followed"]

_FIRST_BUDGET_BYTES: Final = 4 * 1024 * 1024
_LOG_SHARE: Final = 4
"""A snapshot is renewed when the gradients since are so many times its size."""


class Followed:
    """The side of a rank whose state is followed by a neighbour.

    Units go over a few at a time, so that no step waits long for a copy. From the vote a unit went
    over with, its gradients go with every vote. A unit that something else than the optimizer wrote
    to goes over again. Snapshots are of one step: all units go at once.

    Args:
        state: The state of this rank; a single optimizer, as ``obstacle`` makes sure.
        logged: Whether the follower keeps snapshots and gradients instead of a current copy.
    """

    def __init__(self, state: TrainingState, *, logged: bool = False) -> None:
        self._state = state
        self._logged = logged
        self._snapshot_bytes = self._logged_bytes = self._going_bytes = 0
        self._taken: tuple[str, int] | None = None
        self._units = StateUnits(state)
        self._elsewhere = WrittenElsewhere(self._units.parameters())
        self._outdated: set[str] = set()
        self._sent: set[str] = set()
        self._going: tuple[str, ...] = ()
        self._begun = False
        self._told = False
        self._between = False
        self._since_vote: dict[str, int] = {}
        self._sampled = 0
        self._sample: list[Any] | None = None
        self.budget = _FIRST_BUDGET_BYTES

    def has_other_parameters(self) -> bool:
        """Whether the program gave the optimizer other parameters than those that are followed."""
        return self._units.are_outdated()

    def is_given_others(self) -> bool:
        """Whether the running body did."""
        return self._units.are_others()

    @staticmethod
    def log_obstacle(state: TrainingState) -> str:
        """Why steps of ``state`` cannot be taken again, for people; empty when they can."""
        if len(state.optimizers) != 1:
            return f"the session has {len(state.optimizers)} optimizers, a follower takes one"
        return StateUnits(state).log_obstacle()

    @staticmethod
    def obstacle(state: TrainingState) -> str:
        """Why ``state`` cannot be followed, for people; empty when it can."""
        if len(state.optimizers) != 1:
            return Followed.log_obstacle(state)
        if any(not on_host(parameter) for parameter in state.parameters()):
            return "parameters are on a device, and a follower computes on the host: other bits"
        return StateUnits(state).obstacle()

    def restart(self) -> None:
        """The follower is another process, or lost its way: tell it everything anew."""
        self._sent.clear()
        self._outdated.clear()
        self._begun = self._told = False
        self._sample = None

    def adopt(self, names: list[str]) -> None:
        """Go on where the process before this one was: the follower holds ``names``."""
        if self._logged:
            return  # nor how many gradients: it gets a snapshot
        self._sent = set(names)
        self._begun = bool(names)
        self._elsewhere.note()

    @property
    def current(self) -> list[str]:
        """Units that are at the follower as they are here."""
        return sorted(self._sent - self._outdated)

    def message(self, *, step: int, small: dict[str, Any], stepping: bool) -> dict[str, Any]:
        """What goes with the vote of ``step``.

        Args:
            step: Steps completed by the job once the vote has passed.
            small: Settings of the optimizer, and state of schedulers and the like, now.
            stepping: Whether the optimizer takes a step once the vote has passed.
        """
        self._told = True
        self.written()
        self._going = self._next_units()
        known = self._sent.union(self._going)
        gradients = self._units.gradients(0, known) if stepping else {}
        self._going_bytes = sum(gradient.nbytes for gradient in gradients.values())
        return {
            "step": step,
            "outline": None if self._begun else self._outline(),
            "units": {name: self._units.tree(name) for name in self._going},
            "small": small,
            "stepping": stepping,
            "gradients": gradients,
            "behind": {},
            "between": self._between,
            "sample": self._sample,
        }

    def written(self) -> list[str]:
        """What something else than the optimizer wrote to since this was asked last.

        It goes over again.
        """
        names = self._elsewhere.names()
        if names:
            self._outdated.update(self._sent.intersection(names))
            self._elsewhere.note()
        return names

    def written_between(self) -> dict[str, int]:
        """As ``written``, of the program between two steps.

        Returns:
            A checksum of the beginning of each parameter that it wrote to since the vote, by name.
        """
        if names := self.written():
            self._between = True
            parameters = self._units.parameters()
            beginnings = {name: beginning_of(parameters[name]) for name in names}
            self._since_vote = {**self._since_vote, **beginnings}
        return self._since_vote

    def changed_by_work(self) -> str:
        """A unit that work between steps left another than it was; empty where none is known."""
        return next(iter(self._elsewhere.changed()), "")

    def behind(self) -> dict[str, Any]:
        """Units that were written to behind the optimizer's step, for a vote at a body's end."""
        if self._logged:
            return {}
        known = self._sent.union(self._going)
        written = [name for name in self._elsewhere.names() if name in known]
        self._elsewhere.note()
        return {name: self._units.tree(name) for name in written}

    def committed(self) -> list[str]:
        """The vote has passed: what went with it is there.

        Returns:
            See ``written``.
        """
        self._since_vote = {}
        if self._told:  # or it was told to a follower that is gone by now
            self._sent.update(self._going)
            self._outdated.difference_update(self._going)
            self._begun = True
            self._logged_bytes = self._going_bytes + (0 if self._going else self._logged_bytes)
        written = self.written()
        # Now, for the next vote: the program may write to every parameter before that.
        self._sample = self._next_sample()
        return written

    def stepped(self) -> None:
        """The optimizer has taken its step: what it left is what taking it again must lead to."""
        if self._logged:
            name = self._units.names[self._sampled]
            self._taken = name, self._units.sample(name)
        else:
            self._elsewhere.note()

    def changed(self) -> str:
        """Which unit is not what the last step left, for a snapshot; empty when none is known."""
        if self._taken is None:
            return ""
        name, sample = self._taken
        return "" if self._units.sample(name) == sample else name

    def _outline(self) -> dict[str, Any]:
        buffers = [
            {name: local_of(buffer) for name, buffer in model.named_buffers()}
            for model in self._state.models
        ]
        return {**self._units.outline(), "buffers": buffers, "logged": self._logged}

    def _next_units(self) -> tuple[str, ...]:
        """As many as the budget holds, at least one; all of a snapshot that is due, else none."""
        if self._logged:
            if self._begun and self._logged_bytes < _LOG_SHARE * self._snapshot_bytes:
                return ()
            self._snapshot_bytes = sum(map(self._units.nbytes, self._units.names))
            return self._units.names
        chosen = sorted(self._outdated)
        total = 0
        if len(self._sent) < len(self._units.names):
            for name in self._units.names:
                if name in self._sent:
                    continue
                total += self._units.nbytes(name)
                if chosen and total > self.budget:
                    break
                chosen.append(name)
        return tuple(chosen)

    def _next_sample(self) -> list[Any] | None:
        names = self._units.names
        for _ in names:
            self._sampled = (self._sampled + 1) % len(names)
            if names[self._sampled] in self._sent - self._outdated:
                return [names[self._sampled], self._units.sample(names[self._sampled])]
        return None
