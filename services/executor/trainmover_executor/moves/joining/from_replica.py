"""A crash: a standby inherits the dead rank's state from those that hold it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from trainmover_executor.decisions.effects import Joins
from trainmover_executor.moves.facts import Reports
from trainmover_executor.moves.joining.coming import NOWHERE, Coming
from trainmover_executor.moves.joining.front import Front
from trainmover_executor.moves.private_state import (
    PRIVATE_STATE_GROUP,
    PrivateStateLostError,
    giver_of,
)
from trainmover_executor.position.course import (
    Course,
    Lost,
    OneMoreStep,
    Stay,
    TakeOver,
    Way,
    way_to,
)
from trainmover_executor.position.moment import Moment
from trainmover_executor.position.position import Position
from trainmover_executor.redundancy.copies.snapshot import take_again
from trainmover_executor.redundancy.replicas import SAYS_NOTHING
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.state.handing_over.arrival import say_arrived
from trainmover_executor.state.handing_over.transfer import (
    HAND_OVER_TIMEOUT_S,
    live_tensors,
    receive_tree,
)
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.prepare_links import STATE_GROUP
from trainmover_executor.worker.runtime import Runtime

__all__ = ["FromReplica"]

log = structlog.get_logger(__name__)

_UNBORN: Final = -1
_GRADIENTS_LOST: Final = (
    "the gradients that rank {rank} accumulated by itself, without communication, in the bodies "
    "since the last step of its optimizer are lost with it. Put all micro-batches of one optimizer "
    "step into one body: for part in step.microbatches(n)"
)
_EXTRAS_LOST: Final = (
    "rank {rank} alone gave its session {names}, which is lost with it: no other rank holds that. "
    "Give the session the same at all ranks"
)
_WRITES_LOST: Final = (
    "the program of rank {rank} writes to parameters between two steps, no other rank holds them, "
    "and {why}. Write to them inside of 'with step', where each vote tells the rank that follows"
)


class FromReplica:
    """Takes over from a rank that died.

    Args:
        runtime: This rank.
        state: Its state, to be overwritten.
        reports: Where a refusal goes.
        following: How the state survives this machine, once it takes part.

    Attributes:
        writes_in_front: Whether the program wrote to parameters between being given a step and its
            body, in shadow iterations.
        front: What the code in front of the next body must not change, if anything.
    """

    copied: Final = "the leaver is dead"

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        reports: Reports,
        *,
        following: FollowerService,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._reports = reports
        self._following = following
        self.writes_in_front = False
        self.front: Front | None = None

    def begin(self, coming: Coming) -> None:
        """Agree with the survivors on where the job stands, and hear what is known there.

        Raises:
            LinkBrokenError: A survivor cannot be reached.
            StaleEpochError: A later plan is under way.
            ProtocolError: What the dead rank alone knew is lost.
        """
        runtime, plan = self._runtime, coming.plan
        runtime.reset(Joins(plan))
        committed, between, _ = runtime.agree([_UNBORN, _UNBORN, 0], best=max)
        runtime.agree(SAYS_NOTHING, best=min)
        if committed > runtime.decisions.state.origin or between > 0:
            with contextlib.suppress(PrivateStateLostError):  # which is said when it is asked for
                runtime.table.call_ahead(PRIVATE_STATE_GROUP, giver_of(plan, runtime.rank))
        source = plan.sources[runtime.rank]
        coming.link = runtime.table.link(STATE_GROUP, source, timeout_s=HAND_OVER_TIMEOUT_S)
        coming.told, _ = receive_tree(
            coming.link, epoch=plan.epoch, live={}, first_timeout_s=HAND_OVER_TIMEOUT_S
        )
        if coming.told["begun"]:
            coming.take_private_state(self._receive_private_state(coming))
        seen = runtime.places.seen()
        if seen is not None and _same_place(seen["place"], coming.told["place"]):
            coming.now = Position.from_tree(seen["position"])
            coming.written = seen.get("written", {})

    def _receive_private_state(self, coming: Coming) -> dict[str, Any]:
        runtime, plan = self._runtime, coming.plan
        try:
            holder = giver_of(plan, runtime.rank)
        except PrivateStateLostError as error:
            self._reports.refuse(plan, str(error))
        link = runtime.table.link(PRIVATE_STATE_GROUP, holder, timeout_s=HAND_OVER_TIMEOUT_S)
        tree: dict[str, Any]
        tree, _ = receive_tree(link, epoch=plan.epoch, live={}, first_timeout_s=HAND_OVER_TIMEOUT_S)
        return tree

    def way(self, coming: Coming, course: Course, *, between: bool) -> Way:
        """How the program gets to the dead rank's last vote, and from there to the job."""
        way = way_to(target := coming.target, course, between=between)
        if isinstance(way, Lost) and coming.needs_the_rest:
            coming.is_beyond = True
            way = way_to(target := coming.target, course, between=between)
        if isinstance(way, TakeOver) and coming.needs_the_rest:
            way = OneMoreStep(drawn=target.open[-1][1])
        if isinstance(way, OneMoreStep):
            coming.ran_the_rest = len(course.levels) - 1 == len(target.open)
            self._have_state(coming)
        if isinstance(way, Stay) and coming.behind(way.returned) is not None:
            # From here on the program runs as the dead rank's did.
            coming.ran_the_rest, coming.is_beyond = True, False
            coming.issued = self._runtime.latch.issued
            self._have_state(coming)
        return way

    def _have_state(self, coming: Coming) -> None:
        """The code that the program runs on its way sees the state that the job has."""
        if coming.arrived is None:
            self._receive(coming)
            coming.issued = self._runtime.latch.issued
            coming.keep(self._state, step=coming.committed)

    def _receive(self, coming: Coming) -> None:
        """Take the state from a replica."""
        assert coming.link is not None  # noqa: S101 - begin made it
        self._state.structure.load(coming.told["structure"])
        say_arrived(coming.link, epoch=coming.plan.epoch)
        tree, received = receive_tree(
            coming.link,
            epoch=coming.plan.epoch,
            live=live_tensors({"state": self._state.tree()}),
            first_timeout_s=HAND_OVER_TIMEOUT_S,
        )
        self._add_own_extras(coming, tree["state"]["others"])
        self._state.load(tree["state"])
        if "since" in tree["state"]:
            steps = take_again(self._state, tree["state"]["since"])
            log.info("took the steps since a snapshot again", steps=steps)
        told = ("followed", "parted", "writes_between", "gradients", "zeroed")
        coming.rest = {name: tree.get(name) for name in told}
        coming.large = tree["large"]
        coming.count(received)

    def _add_own_extras(self, coming: Coming, others: dict[str, Any]) -> None:
        """What the dead rank alone gave its session comes with its variables, or is lost."""
        missing = self._state.others.keys() - others.keys()
        if lost := sorted(missing - coming.own_extras):
            reason = _EXTRAS_LOST.format(rank=self._runtime.rank, names=", ".join(lost))
            self._reports.refuse(coming.plan, reason)
        others |= {name: self._state.others[name].state_dict() for name in missing}

    def take(self, coming: Coming) -> Moment:
        """Stand where the job stands, with the private state of the dead rank.

        Raises:
            ProtocolError: Something that no other rank holds is lost.
        """
        plan, rank = coming.plan, self._runtime.rank
        settings = self._state.settings()
        if coming.arrived is None:
            self._receive(coming)
        else:
            coming.own_writes.end(issued=self._runtime.latch.issued)
            if not (coming.as_of_vote and coming.was_at_vote):
                coming.put_state_back(self._state)
        tree, told = coming.rest, coming.told
        if lost := coming.lost_writes():
            self._reports.refuse(plan, _WRITES_LOST.format(rank=rank, why=lost))
        self._take_gradients(tree)
        followed = sorted({*tree["followed"]} - coming.own_writes.names)
        self._following.adopt(followed, parted=tree["parted"])
        then = None if coming.voted is None else coming.voted.gradients
        if None not in (tree["gradients"], then) and self._state.gradient_print() != then:
            self._reports.refuse(plan, _GRADIENTS_LOST.format(rank=rank))
        issued, live = self._runtime.latch.issued, self._state.buffers()
        position = coming.position(issued=issued, live=live, settings=settings).to_tree()
        moment = Moment.from_trees(told, position, voted=coming.voted or NOWHERE)
        if told.get("held") and not tree["followed"]:
            self.front = Front(
                self._state,
                given=coming.arrived,
                step=moment.place.committed,
                writes=self.writes_in_front,
                take_gradients=partial(self._take_gradients, tree),
            )
        return replace(moment, large=coming.large)

    def _take_gradients(self, tree: dict[str, Any]) -> None:
        self._state.drop_gradients(but=tree["zeroed"])
        if tree["gradients"] is not None:
            self._state.load_gradients(tree["gradients"])


def _same_place(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two portable places are the same point of the program."""
    return all(one[name] == other[name] for name in ("open", "committed", "between"))
