"""The joiner's part: a warm standby goes to where the job stands, takes the state over, goes on.

A standby's program waits in its first shadow iterations' call of ``session.steps``. The job may be
in a later one. So each time the program asks for a step (or for work between steps), the joiner
says how to get nearer (see ``course``); all of that is still in the sandbox. Where the job stands,
it takes over what a leaver or a replica holds, and is a member from then on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

import structlog
import torch

from trainmover.errors import StaleEpochError
from trainmover.job.plan import Plan
from trainmover_executor.decisions.effects import CouldNotJoin, Joined, Joins
from trainmover_executor.feed.catching_up import Data, catch_up, keep_up
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.moves.facts import Reports
from trainmover_executor.moves.joining.coming import NOWHERE, Coming
from trainmover_executor.moves.joining.front import Front
from trainmover_executor.moves.joining.waiting import Waiting
from trainmover_executor.moves.private_state import (
    PRIVATE_STATE_GROUP,
    PrivateStateKeeper,
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
from trainmover_executor.position.position import Place, Position
from trainmover_executor.position.results import Returned
from trainmover_executor.redundancy.copies.snapshot import take_again
from trainmover_executor.redundancy.replicas import SAYS_NOTHING
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.state.handing_over.arrival import say_arrived
from trainmover_executor.state.handing_over.follow import StateFollower
from trainmover_executor.state.handing_over.transfer import (
    HAND_OVER_TIMEOUT_S,
    StateCorruptError,
    live_tensors,
    receive_tree,
)
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.prepare_links import STATE_GROUP
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Joiner"]

log = structlog.get_logger(__name__)

_PATIENCE_S: Final = 86400.0
_UNBORN: Final = -1
_GRADIENTS_LOST: Final = (
    "the gradients that rank {rank} accumulated by itself, without communication, in the bodies "
    "since the last step of its optimizer are lost with it. Put all micro-batches of one optimizer "
    "step into one body: for part in step.microbatches(n)"
)
_WRITES_LOST: Final = (
    "the program of rank {rank} writes to parameters between two steps, no other rank holds them, "
    "and {why}. Write to them inside of 'with step', where each vote tells the rank that follows"
)


class Joiner:
    """Played by the training thread of a standby, after its shadow iterations.

    Args:
        runtime: This rank.
        state: Its state, to be overwritten.
        reports: Where facts go.
        private_state: What it keeps for other ranks once it takes part.
        following: The same for state.

    Attributes:
        writes_in_front: Whether the program wrote to parameters between being given a step and its
            body, in shadow iterations.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        reports: Reports,
        *,
        private_state: PrivateStateKeeper,
        following: FollowerService,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._private_state = private_state
        self._following = following
        self._reports = reports
        self._coming: Coming | None = None
        self._follower: StateFollower | None = None
        self._front: Front | None = None
        self._waiting = Waiting(runtime)
        self.writes_in_front = False

    @property
    def committed(self) -> int:
        """Steps that the job has completed, as far as this standby was told."""
        if self._coming is None:
            return 0
        told = self._coming.told  # a leaver whose joiner is on its way tells the place alone
        return int(told["committed"] if "committed" in told else told["place"]["committed"])

    @property
    def voted(self) -> Position | None:
        """Where the rank that is replaced was at its last vote, if this standby was told.

        None, too, while the program is in a call around the one that took that vote.
        """
        return None if self._coming is None else self._coming.vote_of_rest()

    def variables_when_given(self, step: list[list[int]]) -> dict[str, Any]:
        """See ``Coming.variables_when_given``."""
        return {} if self._coming is None else self._coming.variables_when_given(step)

    @property
    def variables_now(self) -> dict[str, Any]:
        """The program's variables where the job stands, of the rank that gives the state."""
        return {} if self._coming is None else self._coming.variables_now()

    @property
    def large(self) -> dict[str, torch.Tensor]:
        """What has come of the job's variables that is large, by its prints."""
        return {} if self._coming is None else self._coming.large

    @property
    def replaces_the_dead(self) -> bool:
        """Whether the job waits for this standby since a machine died."""
        return self._coming is not None and not self._coming.is_planned

    @property
    def ran_the_rest(self) -> bool:
        """Whether the program's variables come from the vote of the rank that is replaced."""
        return self._coming is not None and self._coming.ran_the_rest

    def check_inputs(self) -> None:
        """It takes over in a collective, which the program has called with what it computed.

        Raises:
            ProtocolError: It was on its way there before the rank died, with variables of its own.
        """
        if self._coming is not None and self._coming.is_beyond:
            self._refuse(
                self._coming,
                "the job waits in a collective between two steps, and this standby's program had "
                "called it before: put it into session.between_steps()",
            )

    def way(
        self, course: Course, *, between: bool, data: Data, ready: Callable[[], None]
    ) -> tuple[Way, Moment | None]:
        """How this standby's program gets to where the job stands; waits until a plan needs it.

        Args:
            course: Where the program is.
            between: It asks for work between steps; else for a step.
            data: Its data.
            ready: See ``Waiting.until_needed``.

        Returns:
            The way; with ``TakeOver``, what this process goes on with. It holds the state then.
        """
        while True:
            try:
                return self._next_way(course, between=between, data=data, ready=ready)
            except (LinkBrokenError, StaleEpochError, StateCorruptError) as error:
                self._could_not(error)

    def _next_way(
        self, course: Course, *, between: bool, data: Data, ready: Callable[[], None]
    ) -> tuple[Way, Moment | None]:
        coming = self._coming
        if coming is None:
            found = self._waiting.until_needed(course, between=between, data=data, ready=ready)
            if not isinstance(found, Plan):
                return found, None
            coming = self._begin(found)
        way = self._way_of(coming, course, between=between, data=data)
        if isinstance(way, Lost):
            self._refuse(coming, way.reason)
        return way, self._take_over(coming) if isinstance(way, TakeOver) else None

    def position_behind(self, returned: Returned | None) -> Position | None:
        """Where the dead rank was behind work between steps that the program passes, if known."""
        return None if self._coming is None else self._coming.behind(returned)

    def runs_the_rest(self, *, hidden: frozenset[str]) -> None:
        """The program runs the code behind a vote from which it does not see ``hidden``."""
        if self._coming is not None:
            self._coming.hidden = hidden
            self._coming.was_at_vote = not self._coming.is_planned

    def keep_writes(self) -> None:
        """The program is about to do one more step, of which nothing counts."""
        if self._coming is not None:
            self._coming.own_writes.end(issued=self._runtime.latch.issued)

    def put_state_back(self) -> None:
        """Behind the body of one more step: the code there sees the state that the job has."""
        if self._coming is not None:
            self._coming.issued = self._runtime.latch.issued
            self._coming.put_state_back(self._state)

    def check_proof(self) -> None:
        """Before a joiner's first vote: its state must be the leaver's.

        Raises:
            StateCorruptError: It is not.
        """
        if self._follower is not None:
            follower, self._follower = self._follower, None
            follower.check_proof()

    def body_begins(self) -> None:
        """A body of training begins: what the code in front of it did is in the state already.

        Raises:
            ProtocolError: See ``Front.body_begins``.
        """
        front, self._front = self._front, None
        if front is not None:
            front.body_begins()

    # -- the way -----------------------------------------------------------------------------------

    def _begin(self, plan: Plan) -> Coming:
        runtime = self._runtime
        coming = self._coming = Coming(plan)
        runtime.reach("join.begin")
        planned = plan.kind == "planned"
        runtime.reset(Joins(plan), watch=not planned)
        if planned:
            self._check_wanted(plan)
            coming.link = runtime.table.link(STATE_GROUP, runtime.rank, timeout_s=_PATIENCE_S)
            return coming
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
            coming.take_private_state(self._receive_private_state(plan))
        seen = runtime.places.seen()
        if seen is not None and _same_place(seen["place"], coming.told["place"]):
            coming.now = Position.from_tree(seen["position"])
            coming.written = seen.get("written", {})
        return coming

    def _way_of(self, coming: Coming, course: Course, *, between: bool, data: Data) -> Way:
        if coming.plan.kind == "planned":
            return self._followed(coming, course, between=between, data=data)
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
            coming.keep(self._state, step=self.committed)

    def _followed(self, coming: Coming, course: Course, *, between: bool, data: Data) -> Way:
        """Be kept current by the leaver, as long as its program is where this one is."""
        assert coming.link is not None  # noqa: S101 - _begin made it
        while True:
            if coming.told:
                way = way_to(Place.from_tree(coming.told["place"]), course, between=between)
                if coming.message and not isinstance(way, TakeOver) and coming.arrived is None:
                    coming.keep(self._state, step=self.committed)
                if coming.message or not isinstance(way, TakeOver):
                    return way
                seen = self._runtime.places.seen
                go_on = partial(self._check_wanted, coming.plan)
                catch_up(data, coming.told, seen, go_on=go_on)
                self._state.structure.load(coming.told["structure"])
                say_arrived(coming.link, epoch=coming.plan.epoch)
                coming.follower = StateFollower(
                    coming.link, self._state, epoch=coming.plan.epoch, patience_s=_PATIENCE_S
                )
                message, received = coming.follower.follow(
                    meanwhile=partial(keep_up, data, coming.told, seen)
                )
                coming.count(received)
            else:
                message, _ = receive_tree(
                    coming.link, epoch=coming.plan.epoch, live={}, first_timeout_s=_PATIENCE_S
                )
            coming.told = message
            if message["kind"] != "place":
                coming.message = message
            else:
                coming.large |= message["large"]

    def _check_wanted(self, plan: Plan) -> None:
        """Make sure that the plan still needs this standby.

        Raises:
            LinkBrokenError: It does not.
        """
        if self._runtime.decisions.state.withdrawn(plan):
            raise LinkBrokenError("the migration was aborted")

    def _take_over(self, coming: Coming) -> Moment:
        plan, runtime = coming.plan, self._runtime
        planned = plan.kind == "planned"
        moment = self._take_from_leaver(coming) if planned else self._inherit(coming)
        runtime.reach("join.state")
        committed = moment.place.committed
        copied = "the leaver is dead"
        phases = {"join": time.perf_counter() - coming.started}
        if planned:
            copied = "" if self._follower is not None else "following was not possible"
            phases = {}
        self._reports.switched(plan, phases, step=committed, nbytes=coming.nbytes, copied=copied)
        if planned:
            runtime.rewatch()
        log.info(
            "joined",
            migration=plan.id,
            epoch=plan.epoch,
            committed=committed,
            state_bytes=coming.nbytes,
            lent_bytes=coming.lent,
            copied=copied,
        )
        self._coming = None
        runtime.promote()
        between = coming.told["between"]
        runtime.decisions.take(Joined(plan, committed, between, moment.votes_at_end))
        runtime.reach("join.done")
        return moment

    def _take_from_leaver(self, coming: Coming) -> Moment:
        message, follower = coming.message, coming.follower
        assert follower is not None  # noqa: S101 - it received the message
        if coming.arrived is not None:
            coming.arrived.restore()
        self._private_state.keep(message, step=message["committed"])
        self._following.adopt(message["followed"], parted=message["parted"])
        self._state.drop_gradients(but=message.get("zeroed"))
        if message["gradients"] is not None:
            self._state.load_gradients(message["gradients"])
        if not follower.copied:
            follower.begin_proof()
            self._follower = follower
        voted = Position.from_tree(message["voted"])
        coming.large |= message["large"]
        moment = Moment.from_trees(message, message["position"], voted=voted)
        return replace(moment, large=coming.large)

    def _receive(self, coming: Coming) -> None:
        """Take the state from a replica."""
        assert coming.link is not None  # noqa: S101 - _begin made it
        self._state.structure.load(coming.told["structure"])
        say_arrived(coming.link, epoch=coming.plan.epoch)
        tree, received = receive_tree(
            coming.link,
            epoch=coming.plan.epoch,
            live=live_tensors({"state": self._state.tree()}),
            first_timeout_s=HAND_OVER_TIMEOUT_S,
        )
        self._state.load(tree["state"])
        if "since" in tree["state"]:
            steps = take_again(self._state, tree["state"]["since"])
            log.info("took the steps since a snapshot again", steps=steps)
        told = ("followed", "parted", "writes_between", "gradients", "zeroed")
        coming.rest = {name: tree.get(name) for name in told}
        coming.large = tree["large"]
        coming.count(received)

    def _inherit(self, coming: Coming) -> Moment:
        """Stand where the job stands, with the private state of the dead rank."""
        settings = self._state.settings()
        if coming.arrived is None:
            self._receive(coming)
        else:
            coming.own_writes.end(issued=self._runtime.latch.issued)
            if not (coming.as_of_vote and coming.was_at_vote):
                coming.put_state_back(self._state)
        tree, told = coming.rest, coming.told
        if lost := coming.lost_writes():
            self._refuse(coming, _WRITES_LOST.format(rank=self._runtime.rank, why=lost))
        self._take_gradients(tree)
        followed = sorted({*tree["followed"]} - coming.own_writes.names)
        self._following.adopt(followed, parted=tree["parted"])
        then = None if coming.voted is None else coming.voted.gradients
        if None not in (tree["gradients"], then) and self._state.gradient_print() != then:
            self._refuse(coming, _GRADIENTS_LOST.format(rank=self._runtime.rank))
        issued, live = self._runtime.latch.issued, self._state.buffers()
        position = coming.position(issued=issued, live=live, settings=settings).to_tree()
        moment = Moment.from_trees(told, position, voted=coming.voted or NOWHERE)
        if told.get("held") and not tree["followed"]:
            self._front = Front(
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

    def _refuse(self, coming: Coming, reason: str) -> NoReturn:
        self._reports.refuse(coming.plan, reason)

    def _could_not(self, error: Exception) -> None:
        coming, self._coming = self._coming, None
        if coming is None:
            raise error
        log.warning("could not join", migration=coming.plan.id, error=str(error))
        broke = not isinstance(error, StateCorruptError)
        self._runtime.decisions.take(CouldNotJoin(coming.plan, str(error), links_broke=broke))

    def _receive_private_state(self, plan: Plan) -> dict[str, Any]:
        runtime = self._runtime
        try:
            holder = giver_of(plan, runtime.rank)
        except PrivateStateLostError as error:
            self._reports.refuse(plan, str(error))
        link = runtime.table.link(PRIVATE_STATE_GROUP, holder, timeout_s=HAND_OVER_TIMEOUT_S)
        tree: dict[str, Any]
        tree, _ = receive_tree(link, epoch=plan.epoch, live={}, first_timeout_s=HAND_OVER_TIMEOUT_S)
        return tree


def _same_place(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two portable places are the same point of the program."""
    return all(one[name] == other[name] for name in ("open", "committed", "between"))
