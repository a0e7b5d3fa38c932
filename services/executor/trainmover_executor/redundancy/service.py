"""Follower redundancy of one rank: its own state goes to the next slot, the one before comes here.

With each vote a rank hands the gradients and settings of the step to the same local rank of the
next slot, which keeps a copy current with an optimizer of its own. A vote that passes implies that
they arrived, so a crash loses no step (see docs/adr/0009-a-neighbour-follows-sharded-state.md).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
import torch

from trainmover.events.executor import JobLayoutKnown, Span, StateFollowed
from trainmover.job.redundancy import Redundancy
from trainmover_executor.redundancy.followed import Followed
from trainmover_executor.redundancy.follower import Follower, NotFollowedError
from trainmover_executor.redundancy.layout import redundancy_of
from trainmover_executor.redundancy.replicas import LastChecksum, Replicas
from trainmover_executor.redundancy.whole import WholeFollowed
from trainmover_executor.state.optimizers.settings import settings_of
from trainmover_executor.state.packing.codec import TensorSpec
from trainmover_executor.state.packing.memory import flat_of
from trainmover_executor.state.packing.portable import PartedTree, pack_tree, part_tree, unpack_tree
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.runtime import Runtime

__all__ = ["FollowerService"]

log = structlog.get_logger(__name__)

_APART_BYTES: Final = 16 * 1024
_HEAD_LIMIT_BYTES: Final = 256 * 1024 * 1024
_COPY_SHARE: Final = 0.05
"""Share of a step that handing over units may cost."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """What a vote at the end of a body tells of the moment in front of its optimizer's step.

    Attributes:
        small: Settings and small state.
        message: What goes to the follower; None where there is none.
        versions: Of the gradients in it, which are not copied.
    """

    small: dict[str, Any]
    message: dict[str, Any] | None
    versions: list[int]

    def has_other_gradients(self) -> bool:
        """Whether the gradients were changed since."""
        gradients = {} if self.message is None else self.message["gradients"]
        now = [gradient._version for gradient in gradients.values()]  # noqa: SLF001 - as above
        return now != self.versions


class FollowerService:
    """Played by the training thread at the vote.

    Args:
        runtime: This rank.
        state: Its state.
        last: The checksum of the step that was completed last.

    Attributes:
        replicas: Which ranks hold the same state.
    """

    def __init__(
        self, runtime: Runtime, state: TrainingState, *, last: LastChecksum = lambda: None
    ) -> None:
        self._runtime = runtime
        self._state = state
        world_size = runtime.membership.layout.world_size
        self.replicas = Replicas(state, rank=runtime.rank, world_size=world_size, last=last)
        self._followed: Followed | WholeFollowed | None = None
        self._follower: Follower | None = None
        self._landing: dict[str, torch.Tensor] = {}
        self._turn = 0
        self._reported = False
        self._adopted: list[str] = []
        self._noted: _Noted | None = None
        self._written = False
        self._begins_whole = self._told_whole = False
        layout = runtime.membership.layout
        self._to = (runtime.rank + layout.ranks_per_slot) % layout.world_size
        self._source = (runtime.rank - layout.ranks_per_slot) % layout.world_size

    def still_followed(self) -> bool:
        """Whether what this rank says with its next vote is followed; asked once for each."""
        if self._noted is not None and self._noted.has_other_gradients():
            self._give_up("its gradients are changed behind the optimizer's step")
        if self._followed is not None and self._followed.is_given_others():
            self._give_up("the body gives its optimizer other parameters than it began with")
        if self._followed is not None and (name := self._followed.changed()):
            self._give_up(f"{name} is changed outside of its optimizer")
        whole = isinstance(self._followed, WholeFollowed)
        if whole and (obstacle := WholeFollowed.obstacle(self._state)):
            self._give_up(obstacle)  # it has grown
        return self._followed is not None

    def protect(self) -> None:
        """See to it that this rank's state survives its machine, and say how.

        Where nobody holds the same state it is followed, from the next vote on.
        """
        runtime = self._runtime
        state = runtime.decisions.state
        self.replicas.begin(committed=state.committed, origin=state.origin)
        choice = runtime.spec.redundancy
        obstacle, log_obstacle = Followed.obstacle(self._state), Followed.log_obstacle(self._state)
        cannot = self.replicas.parted or bool(obstacle and log_obstacle)
        whole = cannot and not WholeFollowed.obstacle(self._state)
        kind, obstacle = redundancy_of(
            "auto" if choice == "replica" and self.replicas.parted else choice,
            rank=runtime.rank,
            replicas=self.replicas.ranks,
            layout=runtime.membership.layout,
            obstacle="" if whole else obstacle,
            log_obstacle=log_obstacle,
        )
        if kind in {"follower", "snapshot"}:
            if kind == "follower" and whole:
                self._followed = WholeFollowed(self._state)
            else:
                self._followed = Followed(self._state, logged=kind == "snapshot")
            self._followed.adopt(self._adopted)
            self._adopted = []
        self._say(kind, obstacle)

    def heard(self, least: Sequence[int]) -> None:
        """What ranks said of their state with a vote that passed, or after a failure.

        Args:
            least: See ``Replicas.says``.
        """
        if what := self.replicas.heard(least):
            self._part(what)

    def _part(self, what: str) -> None:
        log.warning(
            "ranks are no replicas, nor can one foretell another's steps, as with local SGD, an "
            "average of weights made before wrapping, an optimizer that keeps its rank's share, "
            "or a learning rate that follows each rank's own loss: each is protected by itself",
            what=what,
        )
        self.protect()

    def _give_up(self, reason: str) -> None:
        """The follower cannot know what was done: no copy is better than a wrong one."""
        self._followed = None
        log.warning("the state of this rank is not followed any more", reason=reason)
        self._say("checkpoint", reason)
        choice = self._runtime.spec.redundancy
        may = choice not in {"snapshot", "checkpoint"}
        self._begins_whole = may and not WholeFollowed.obstacle(self._state)

    def _say(self, kind: Redundancy, obstacle: str) -> None:
        runtime = self._runtime
        runtime.report(
            JobLayoutKnown(
                machine=runtime.spec.machine,
                rank=runtime.rank,
                alike=Span.of(self.replicas.ranks),
                redundancy=kind,
                obstacle=obstacle,
            )
        )

    # -- the vote --------------------------------------------------------------------------------

    @property
    def wants_the_end(self) -> str:
        """Why votes are to be at the end of bodies, for people; empty where they need not be.

        A vote in front of the optimizer tells the follower nothing of what comes behind it.
        """
        if self.replicas.parted:
            return "ranks hold different parameters, and the next slot has to know all changes"
        if isinstance(self._followed, WholeFollowed):
            return "the next slot is told all of the state that a step leads to"
        if self._written:
            return "parameters are written to outside of their optimizer's step"
        return ""

    def note(self, *, step: int) -> None:
        """In front of an optimizer's step that is voted for later: what to say with that vote.

        A follower takes the same step from the same state, so that is what it is told of.

        Args:
            step: Steps completed by the job once the vote has passed.
        """
        if self._followed is None and self._follower is None:
            return
        small = self._small()
        message = None
        if isinstance(self._followed, Followed) and not self._followed.is_given_others():
            message = self._followed.message(step=step, small=small, stepping=True)
            message["units"] = _cloned(message["units"])
        gradients = message["gradients"].values() if message is not None else ()
        versions = [gradient._version for gradient in gradients]  # noqa: SLF001 - no public name
        self._noted = _Noted(small, message, versions)

    def begin_attempt(self, *, redone: bool) -> None:
        """An attempt at a step begins.

        Args:
            redone: It is not the first one.
        """
        self._noted = None
        if self._begins_whole and self._followed is None:
            self._followed = WholeFollowed(self._state)
        if redone or self._followed is None:
            return
        if self._followed.has_other_parameters():
            self.protect()  # from the beginning: the follower's copy has others, too

    def written_between(self) -> dict[str, int]:
        """What the program wrote to between two steps, where this rank is followed.

        The follower has it from the next vote on. Before that, whoever replaces this rank takes
        its state as of the last vote, and does the program's work behind that vote again.

        Returns:
            A checksum of the beginning of each parameter that was written to since, by name.
        """
        return {} if self._followed is None else self._followed.written_between()

    def worked(self) -> None:
        """Work between steps is done, which nobody does again."""
        if self._followed is not None and (name := self._followed.changed_by_work()):
            self._give_up(
                f"session.between_steps() wrote to {name}: do that behind the body of a step"
            )

    def exchange(self, *, step: int, stepping: bool, receiving: bool, step_s: float) -> None:
        """Hand over what belongs to the step that is voted for, and take in the other's.

        Args:
            step: Steps completed by the job once the vote has passed.
            stepping: Whether the optimizer takes a step then.
            receiving: Whether the rank in the slot before is followed.
            step_s: Duration of a step, for the pace at which units go over.

        Raises:
            LinkBrokenError: A neighbour is gone.
        """
        if self._followed is None and not receiving:
            return
        noted, self._noted = self._noted, None
        if noted is None:
            noted = _Noted(self._small(), None, [])
        small, message, out = noted.small, noted.message, None
        if isinstance(self._followed, WholeFollowed):
            self._told_whole = self._runtime.decisions.state.votes_at_end
            message = self._followed.message(step=step, at_end=self._told_whole)
            out = part_tree(message, limit=_APART_BYTES)
        elif self._followed is not None:
            if message is None:
                message = self._followed.message(step=step, small=small, stepping=stepping)
            else:
                message["behind"] = self._followed.behind()
            if self.replicas.parted:  # the other may have other models
                message["structure"] = self._state.structure.tree()
            out = part_tree(message, limit=_APART_BYTES)
        if receiving and self._follower is None:
            self._follower = Follower()
        if self._follower is not None:
            self._follower.rest()  # what it takes a step with lies where the next one will land
        started = time.perf_counter()
        control = self._runtime.control
        source = self._source if receiving else None
        head = control.exchange_heads(
            out and out[0], to=self._to, source=source, limit=_HEAD_LIMIT_BYTES
        )
        parted = None if head is None else PartedTree(head)
        landing = [] if parted is None else [self._place(spec) for spec in parted.apart]
        control.exchange_tensors(out[1] if out else [], landing, to=self._to, source=self._source)
        self._pace(out, took_s=time.perf_counter() - started, step_s=step_s)
        if self._follower is not None and parted is not None:
            self._follower.receive(parted.join(landing), own=small)

    def stepped(self) -> None:
        """The optimizer has taken its step."""
        if self._followed is not None:
            self._followed.stepped()

    def committed(self) -> None:
        """The vote has passed."""
        if self._followed is not None:
            self._written = bool(self._followed.committed()) or self._written
            if self._begins_whole and self._told_whole:
                self._begins_whole = False
                self._say("follower", "")
        if self._follower is not None:
            self._follower.committed()
            self._turn = 1 - self._turn
            if self._follower.current and not self._reported:
                self._report()
            self._reported = self._follower.current
            is_unlike = self._follower.is_unlike and not self.replicas.parted
            if is_unlike and not WholeFollowed.obstacle(self._state):
                self.replicas.parted = True  # which the others hear with the next vote
                self._part("optimizers or schedulers are set differently")

    def abort(self) -> None:
        """The vote did not pass."""
        if self._follower is not None:
            self._follower.abort()

    def restored(self) -> None:
        """An aborted step was taken back: parameters that had been kept were written to."""
        if self._followed is not None:
            self._followed.written()

    def strayed(self) -> None:
        """An optimizer took a second step within one vote: the follower knows of one."""
        if isinstance(self._followed, Followed):
            self._give_up("its optimizer takes several steps within one vote")

    # -- membership changes ----------------------------------------------------------------------

    def replaced(self, ranks: Collection[int]) -> None:
        """The processes of ``ranks`` are others from now on."""
        if self._followed is not None and self._to in ranks:
            self._followed.restart()
        self._reported = False

    def units_held(self) -> list[str]:
        """For the joiner that takes this rank's place: what its follower keeps current."""
        return [] if self._followed is None else self._followed.current

    def adopt(self, names: list[str], *, parted: bool) -> None:
        """This rank joined.

        Args:
            names: What its follower keeps current of it.
            parted: Whether ranks under one wrapper hold different state.
        """
        self._adopted = names
        self.replicas.parted = parted
        if self._followed is not None:
            self._followed.adopt(names)

    @property
    def holds_a_vote(self) -> bool:
        """Whether the state of the rank that is followed is here as it was at its last vote.

        Else it is as it would be now.
        """
        return self._follower is not None and self._follower.holds_a_vote

    @property
    def writes_between(self) -> bool:
        """Whether the rank that is followed here writes to parameters between two steps."""
        return self._follower is not None and self._follower.writes_between

    def tree_of(self, rank: int, *, committed: int) -> tuple[dict[str, Any], list[str]]:
        """The state of ``rank`` after ``committed`` steps, and its followed units.

        Raises:
            NotFollowedError: It is not here.
        """
        if rank != self._source or self._follower is None:
            raise NotFollowedError(f"rank {self._runtime.rank} does not follow rank {rank}")
        return self._follower.tree(committed=committed, own=self._small())

    def structure_for(self, rank: int) -> dict[str, Any]:
        """What ``rank`` has changed about its models and optimizers: see ``Structure``.

        Ranks that hold different state may have different models: an average at one rank alone.
        """
        theirs = None
        if rank == self._source and rank not in self.replicas.ranks and self._follower is not None:
            theirs = self._follower.structure
        return self._state.structure.tree() if theirs is None else theirs

    # -- details ---------------------------------------------------------------------------------

    def _small(self) -> dict[str, Any]:
        """Settings and small state, as they look after a journey; a copy."""
        optimizers = self._state.optimizers
        settings = settings_of(optimizers[0]) if optimizers else []
        packed = pack_tree({"settings": settings, "others": self._state.small()})
        small: dict[str, Any] = unpack_tree(packed)
        return small

    def _place(self, spec: TensorSpec) -> torch.Tensor:
        """Where to receive a large tensor: gradients land where they did before.

        What is kept until the next vote has passed lands where it did the time before last.
        """
        where = f"{self._turn}{spec.path}" if spec.path.startswith("/whole/") else spec.path
        known = self._landing.get(where)
        if known is None or known.shape != spec.shape or known.dtype != spec.dtype:
            known = torch.empty(spec.shape, dtype=spec.dtype)
            if spec.path.startswith(("/gradients/", "/whole/")):
                self._landing[where] = known
        return known

    def _pace(
        self, out: tuple[bytes, list[torch.Tensor]] | None, *, took_s: float, step_s: float
    ) -> None:
        if self._followed is None or out is None:
            return
        nbytes = len(out[0]) + sum(flat_of(tensor).nbytes for tensor in out[1])
        if nbytes > self._followed.budget // 4:
            rate = nbytes / max(took_s, 1e-6)
            self._followed.budget = int(_COPY_SHARE * step_s * rate)

    def _report(self) -> None:
        runtime = self._runtime
        runtime.report(
            StateFollowed(
                machine=runtime.spec.machine,
                rank=self._source,
                follower=runtime.rank,
                epoch=runtime.epoch,
            )
        )


def _cloned(tree: Any) -> Any:
    """A copy of nested dictionaries with tensors."""
    if isinstance(tree, torch.Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: _cloned(value) for key, value in tree.items()}
    return tree
