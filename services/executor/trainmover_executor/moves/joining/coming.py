"""What a standby was told on its way into the job, and what it takes over where the job stands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import structlog
import torch

from trainmover.job.plan import Plan
from trainmover_executor.links.link import Link
from trainmover_executor.moves.course_packing import PACKING
from trainmover_executor.moves.joining.own_extras import keeping_own_extras
from trainmover_executor.moves.joining.own_writes import OwnWrites
from trainmover_executor.moves.predict import alike, is_computed, predicted
from trainmover_executor.moves.private_state import open_private_state
from trainmover_executor.moves.work_kept import results_of, works_of
from trainmover_executor.position.course import place_of_vote, still_open
from trainmover_executor.position.position import Place, Position, WorkDone
from trainmover_executor.position.results import Returned
from trainmover_executor.program.values.large import is_told_whole, is_whole
from trainmover_executor.program.values.lasting import EXTRA
from trainmover_executor.state.handing_over.follow import StateFollower
from trainmover_executor.state.handing_over.transfer import Transferred
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.rng import capture_rng
from trainmover_executor.state.training import TrainingState

__all__ = ["NOWHERE", "Coming"]

log = structlog.get_logger(__name__)

NOWHERE: Final = Position([], {}, [], {})
"""Of a job that has not begun."""


class Coming:
    """A plan that this standby joins, from its first word to the take-over.

    After a crash, what only the dead rank knew is known as of its last vote. So the program goes to
    that vote first, runs the code behind it from there, and so comes to where the job stands.

    Attributes:
        plan: The plan.
        link: To the leaver, or to the replica that gives the state.
        told: What the giver said of where the job stands; empty until it did.
        voted: What the rank that is replaced alone knew at its last vote; None for a planned move.
        works: What it knew behind each work between steps since, by ordinal.
        now: What it knew at the place where the job stands, if it had shown that before it died.
        written: Parameters that it had written to since that vote, if it had shown that: checksums
            of their beginnings, by name.
        ran_the_rest: Whether the program ran the code behind that vote, from ``voted``, or behind
            later work, from where the dead rank was then.
        was_at_vote: Whether the program ran the code behind that vote.
        is_beyond: Whether the program had passed the call of that vote before the machine died.
        hidden: How the paths begin of variables that cannot be seen from that vote: those of
            generators that give the steps on.
        issued: Collectives that the program had issued when its body ended, or the state came.
        follower: Of a planned move.
        message: The last one of a planned move.
        rest: What a replica handed over beside the state.
        arrived: The state that was handed over, kept while the program runs one more step.
        own_writes: What the program wrote to parameters since, where they came from a follower.
        nbytes: Bytes of state that came.
        lent: Bytes of it that came from GPU memory to GPU memory.
        large: What has come of the giver's variables that is large, by its prints.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.started = time.perf_counter()
        self.link: Link | None = None
        self.told: dict[str, Any] = {}
        self.voted: Position | None = None
        self.works: dict[int, Position] = {}
        self.now: Position | None = None
        self.written: dict[str, int] = {}
        self.was_at_vote = False
        self.ran_the_rest = False
        self.is_beyond = False
        self.hidden: frozenset[str] = frozenset()
        self.issued = 0
        self.follower: StateFollower | None = None
        self.message: dict[str, Any] = {}
        self.rest: dict[str, Any] = {}
        self.arrived: StepStart | None = None
        self.own_writes = OwnWrites()
        self.nbytes = self.lent = 0
        self.large: dict[str, torch.Tensor] = {}

    def count(self, received: Transferred) -> None:
        """State has come."""
        self.nbytes += received.nbytes
        self.lent += received.lent

    @property
    def is_planned(self) -> bool:
        """Whether a leaver hands over; else a machine died."""
        return self.plan.kind == "planned"

    @property
    def committed(self) -> int:
        """Steps that the job has completed, as far as this standby was told."""
        told = self.told  # a leaver whose joiner is on its way tells the place alone
        return int(told["committed"] if "committed" in told else told["place"]["committed"])

    @property
    def needs_the_rest(self) -> bool:
        """Whether the program has to run the code behind the dead rank's last vote."""
        shown = self.now is not None and not self.written and not self.as_of_vote
        return not (self.voted is None or shown or self.ran_the_rest or self.is_beyond)

    @property
    def as_of_vote(self) -> bool:
        """Whether the state that comes is the dead rank's at its last vote, not as of now."""
        return bool(self.told.get("as_of_vote"))  # none from a release before

    @property
    def target(self) -> Place:
        """Where the program has to go next."""
        place = Place.from_tree(self.told["place"])
        if self.needs_the_rest and self.voted is not None:
            return place_of_vote(self.voted.open, place)
        return place

    def take_private_state(self, tree: dict[str, Any]) -> None:
        """A neighbour of the dead rank says what it kept of that.

        What work between steps returned may be another at each rank: where the job stands was told
        by one of them, so what it tells of results is replaced.
        """
        if tree["private_state"]:
            self.voted = Position.from_tree(open_private_state(tree["private_state"]))
        works = works_of(tree)
        self.works = {n: there for n, there in works.items() if n <= self.told["between"]}
        results = results_of(tree)
        known = {n: returned for n, returned in results.items() if returned is not None}
        place = Place.from_tree(self.told["place"])
        returned = place.returned.replaced(known, packing=PACKING)
        self.told["place"] = replace(place, returned=returned).to_tree()
        passed = [WorkDone.from_tree(work).returned for work in self.told["passed"]]
        mine = [
            WorkDone(known.get(one.ordinal, one), self.works.get(one.ordinal, NOWHERE))
            for one in passed
        ]
        self.told["passed"] = [work.to_tree() for work in mine]
        if any(results.get(ordinal, ...) is None for ordinal in self.works):
            log.warning(
                "what session.between_steps returned at the rank that died was too large for a "
                "neighbour to keep: this one has what another rank's returned"
            )

    @property
    def known(self) -> Position | None:
        """The last that is known of the dead rank in front of where the job stands."""
        last = self.told["between"] - len(self.told["passed"])
        return self.works.get(last, self.voted)

    @property
    def own_extras(self) -> set[str]:
        """Names of what the dead rank gave its session, as far as a neighbour was told it whole."""
        variables = {} if self.voted is None else self.voted.variables
        own = {path: tree for path, tree in variables.items() if path.startswith(EXTRA)}
        return {path.removeprefix(EXTRA) for path, tree in own.items() if is_told_whole(tree)}

    def behind(self, returned: Returned | None) -> Position | None:
        """Where the dead rank was behind work that the program passes, if that is known."""
        return None if returned is None else self.works.get(returned.ordinal)

    def vote_of_rest(self) -> Position | None:
        """The vote behind which the program runs one more step; None if that is not known."""
        if not self.is_planned:
            return self.voted if self.ran_the_rest else None
        # A leaver that is not between steps is met without running the code behind its vote.
        voted, place = Position.from_tree(self.told["voted"]), self.told["place"]
        return voted if place["between"] and voted.open == place["open"] else None

    def variables_now(self) -> dict[str, Any]:
        """The program's variables where the job stands, of the rank that gives the state."""
        leavers = self.told.get("position", {}).get("variables", {})
        return dict(self.told.get("now", leavers))

    def variables_when_given(self, step: list[list[int]]) -> dict[str, Any]:
        """The program's variables when the job was given a step, as nearly as they are known.

        Args:
            step: Which: the open calls with it, as in ``Place.open``.
        """
        tree = self.told.get("voted")
        voted = Position.from_tree(tree) if self.is_planned and tree else self.voted
        if voted is not None and voted.open == step:
            return voted.variables_when_given
        if self.now is not None:
            return self.now.variables
        # After a crash the program comes there by itself, from the dead rank's last vote.
        return self.variables_now() if self.is_planned else {}

    def position(
        self, *, issued: int, live: Sequence[torch.Tensor], settings: dict[str, Any]
    ) -> Position:
        """What the dead rank would know where the job stands.

        Args:
            issued: Collectives that the program has issued.
            live: Buffers of this standby, once the state is back.
            settings: Of this standby's optimizers, before the state was back.
        """
        if self.voted is None:
            return NOWHERE  # an unborn job: this rank's own beginning is the dead rank's
        if self.now is not None:
            return self.now
        known = self.known
        assert known is not None  # noqa: S101 - it is the vote at least
        place = Place.from_tree(self.told["place"])
        opened = still_open(known.open, place)
        feeds: list[dict[str, Any] | None] = [*known.feeds[:opened]]
        feeds += [None] * (len(place.open) - opened)
        if self.is_beyond and known is self.voted:
            log.warning("random numbers are as they were at the last vote of the dead rank")
        return Position(
            feeds=feeds,
            rng=known.rng if self.is_beyond else capture_rng(),
            buffers=self._buffers(known, live),
            variables=self._variables(known, quiet=issued == self.issued),
            settings=settings if self.ran_the_rest and not self.is_beyond else {},
        )

    def keep(self, state: TrainingState, *, step: int) -> None:
        """Keep the state that was handed over and has just arrived.

        Args:
            state: Of this process, with it.
            step: Steps completed by the job.
        """
        self.arrived = StepStart(state)
        self.arrived.capture(step, whole=True)
        self._watch(state)

    def _watch(self, state: TrainingState) -> None:
        if self.rest.get("followed"):
            self.own_writes.begin(state, issued=self.issued)

    def put_state_back(self, state: TrainingState) -> None:
        """Have the state that was handed over again, if the program changed it since.

        What may be each rank's own is as the program has it: buffers, and extras that are small.
        """
        if self.arrived is None:
            return
        live = state.buffers()
        buffers = [[index, live[index].clone()] for index in self._changed_here()]
        with keeping_own_extras(state):
            self.arrived.restore()
        state.load_buffers(buffers)
        state.load_buffers(self._alike().items())
        self.own_writes.put_back()
        self._watch(state)

    def put_parameters_back(self, *, settings: dict[str, Any]) -> None:
        """Have parameters and what optimizers keep again as they were handed over.

        Args:
            settings: See ``StepStart.restore_large``.
        """
        if self.arrived is not None:
            self.arrived.restore_large(settings=settings)

    def lost_writes(self) -> str:
        """Why parameters may not be what the dead rank's were, for people; empty if they are."""
        writes = self.rest.get("writes_between") or self.own_writes.names or self.written
        if not writes or self.voted is None:
            return ""
        if not self.was_at_vote:
            if self.now is not None and not self.written and not self.as_of_vote:
                return ""
            return "this standby's program had passed the code that does"
        if self.now is None:
            return "its collectives are stand-ins here" if self.own_writes.communicated else ""
        name = self.own_writes.differing(self.written)
        return f"{name} came out different when that code ran again" if name else ""

    def _changed_here(self) -> list[int]:
        """Buffers that the program changed here as the rank would have that is replaced.

        Code behind a vote may change them: it counts, or averages weights.
        """
        vote = self.vote_of_rest()
        if vote is None:
            return []
        known = vote if self.is_planned or self.known is None else self.known
        return sorted({index for one in (vote, known) for index, _ in one.buffers})

    def _buffers(self, known: Position, live: Sequence[torch.Tensor]) -> list[list[Any]]:
        certain = self._alike()
        if not self.ran_the_rest:
            return [[index, certain.get(index, value)] for index, value in known.buffers]
        return [[index, certain.get(index, live[index])] for index in self._changed_here()]

    def _alike(self) -> dict[int, torch.Tensor]:
        """Buffers that were the same at the dead rank and at the giver, as the giver has them."""
        told, known = self.told.get("buffers"), None if self.is_planned else self.known
        if told is None or known is None:
            return {}
        return alike(known.buffers, then=told["then"], now=told["now"])

    def _variables(self, known: Position, *, quiet: bool) -> dict[str, Any]:
        """Variables that the program does not have right already.

        It set them itself, from the dead rank's values. What it may have wrong is what it computed
        from collectives, which are stand-ins here, from gradients, which are those of its own
        shadow body, and what cannot be seen from there: if that is alike at all ranks, it is
        what the giver has.

        Args:
            known: The last that is known of it.
            quiet: The code behind it issued no collective.
        """
        told = self.told
        certain, unknown = predicted(known.variables, then=told["then"], now=told["now"])
        unsure = [path for path in unknown if self._is_hidden(path)]
        unsure += [
            path
            for path, tree in known.variables.items()
            if path not in certain and not is_whole(tree, self.large)
        ]
        if unsure:
            log.warning(
                "variables that differ from rank to rank are as this standby had them",
                variables=unsure,
            )
        set_here = {
            path: value
            for path, value in certain.items()
            if self.is_beyond
            or self._is_hidden(path)
            or (path in known.variables and (not quiet or is_computed(known.variables[path])))
        }
        # A program that had passed that work before was told no variables there.
        beyond_work = self.is_beyond and known is not self.voted
        return {**known.variables, **set_here} if beyond_work else set_here

    def _is_hidden(self, path: str) -> bool:
        return path.partition(".")[0] in self.hidden
