"""A planned move: the leaver keeps a standby current, and hands over where both stand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from trainmover_executor.decisions.effects import Joins
from trainmover_executor.feed.catching_up import Data, catch_up, keep_up
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.moves.joining.coming import Coming
from trainmover_executor.moves.private_state import PrivateStateKeeper
from trainmover_executor.position.course import Course, TakeOver, Way, way_to
from trainmover_executor.position.moment import Moment
from trainmover_executor.position.position import Place, Position
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.state.handing_over.arrival import say_arrived
from trainmover_executor.state.handing_over.follow import StateFollower
from trainmover_executor.state.handing_over.transfer import receive_tree
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.prepare_links import STATE_GROUP
from trainmover_executor.worker.runtime import Runtime

__all__ = ["FromLeaver"]

_PATIENCE_S: Final = 86400.0


class FromLeaver:
    """Takes over from a rank that lives.

    Args:
        runtime: This rank.
        state: Its state, to be overwritten.
        private_state: What it keeps for other ranks once it takes part.
        following: The same for state.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        *,
        private_state: PrivateStateKeeper,
        following: FollowerService,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._private_state = private_state
        self._following = following
        self._follower: StateFollower | None = None

    @property
    def copied(self) -> str:
        """Why the state was copied in the pause; empty if it followed the leaver's before."""
        return "" if self._follower is not None else "following was not possible"

    def begin(self, coming: Coming) -> None:
        """Connect to the leaver.

        Raises:
            LinkBrokenError: It cannot be reached, or the plan does not need this standby any more.
            StaleEpochError: A later plan is under way.
        """
        self._runtime.reset(Joins(coming.plan), watch=False)
        self._check_wanted(coming)
        table, rank = self._runtime.table, self._runtime.rank
        coming.link = table.link(STATE_GROUP, rank, timeout_s=_PATIENCE_S)

    def way(self, coming: Coming, course: Course, *, between: bool, data: Data) -> Way:
        """Be kept current by the leaver, as long as its program is where this one is."""
        assert coming.link is not None  # noqa: S101 - begin made it
        while True:
            if coming.told:
                way = way_to(Place.from_tree(coming.told["place"]), course, between=between)
                if coming.message and not isinstance(way, TakeOver) and coming.arrived is None:
                    coming.keep(self._state, step=coming.committed)
                if coming.message or not isinstance(way, TakeOver):
                    return way
                seen = self._runtime.places.seen
                catch_up(data, coming.told, seen, go_on=partial(self._check_wanted, coming))
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

    def take(self, coming: Coming) -> Moment:
        """Have what the leaver handed over; where the job stands."""
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

    def check_proof(self) -> None:
        """Compare the state that followed with the leaver's, once.

        Raises:
            StateCorruptError: They differ.
        """
        if self._follower is not None:
            follower, self._follower = self._follower, None
            follower.check_proof()

    def _check_wanted(self, coming: Coming) -> None:
        """Make sure that the plan still needs this standby.

        Raises:
            LinkBrokenError: It does not.
        """
        if self._runtime.decisions.state.withdrawn(coming.plan):
            raise LinkBrokenError("the migration was aborted")
