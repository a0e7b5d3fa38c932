"""The leaver's side of following: the joiner is kept current while training runs.

A thread hands over unit after unit between optimizer steps, at a fraction of the link's speed. In
front of each optimizer step the training thread sends the gradients and settings of the units that
were handed over, so the joiner takes the same step. When every unit is over and one step has been
followed by all of them, fingerprints are compared, and the rank may vote for the switch: what is
left then does not grow with the model.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import structlog

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover_executor.links.link import Link, LinkBrokenError
from trainmover_executor.position.moment import Moment
from trainmover_executor.state.handing_over.arrival import await_arrival
from trainmover_executor.state.handing_over.transfer import Transferred, receive_tree, send_tree
from trainmover_executor.state.handing_over.written import WrittenElsewhere, marks_of_states
from trainmover_executor.state.optimizers.settings import settings_of
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.units import StateUnits

__all__ = ["StateLead"]

log = structlog.get_logger(__name__)

_DUTY: Final = 0.25
"""Share of the time in which the thread may move bytes: it competes with training for memory."""

_OTHER_PARAMETERS: Final = "the program gave its optimizer other parameters meanwhile"
_BATCH_BYTES: Final = 2 * 1024 * 1024
"""So much of a model of many small tensors moves in one message."""

_MOST_IDLE: Final = 32
"""Steps of the job in which no optimizer takes one; then nobody waits for the next."""

_STALL_TIMEOUT_S: Final = 10.0
"""A joiner that takes longer than this to take a message in is given up; training goes on."""

_LOOK_S: Final = 0.5
"""How often a wait asks whether the migration is still on: nobody announces that it is not."""


class _NotFollowedError(ProtocolError):
    """State is to be copied at the switch, for this reason."""


class StateLead:
    """Keeps one joiner current; made by the training thread between two steps.

    Args:
        link: Link to the joiner, this object's own from now on.
        state: This rank's state.
        moment: Where the job stands: the joiner's program has to get there first.
        epoch: Epoch the joiner is to enter.
        wanted: Whether the migration is still on; asked between messages.
        current: Called once the joiner is current, or once it is known that state must be copied
            at the switch instead; by the thread.
        lost: Called with the reason when the joiner is out of reach; by either thread.

    Attributes:
        obstacle: Why state is copied at the switch, for people; empty while it is followed.
        nbytes: Bytes sent so far.
    """

    def __init__(
        self,
        link: Link,
        state: TrainingState,
        *,
        moment: Moment,
        epoch: int,
        wanted: Callable[[], bool],
        current: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        self._link = link
        self._state = state
        self._moment = moment
        self._units = StateUnits(state)
        self._elsewhere = WrittenElsewhere(self._units.trained())
        self._states: list[Any] = []
        self._epoch = epoch
        self._wanted = wanted
        self._current = current
        self._lost = lost
        self._sent: set[str] = set()
        self._told: set[str] = set()
        self._untrained: dict[str, tuple[int, int]] = {}
        self._late: set[str] = set()
        self._changed = threading.Condition()
        self._stepping = False
        self._handing = False
        self._met = self._paused = self._deferred = False
        self._steps_followed = self._idle = 0
        self._over = threading.Event()
        self.obstacle = self._units.obstacle()
        self.nbytes = 0
        self._thread = threading.Thread(target=self._run, name="tm-lead", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    # -- the training thread ---------------------------------------------------------------------

    def step_begins(self) -> None:
        """The program asked for its next step."""
        with self._changed:
            self._idle += 1
            self._changed.notify_all()

    def before_optimizer(self, index: int) -> None:
        """Optimizer ``index`` is about to take a step that was voted for."""
        if self._over.is_set() or self.obstacle:
            return
        if self._units.are_outdated():
            self.obstacle = _OTHER_PARAMETERS
            return
        with self._changed:
            if self._stepping and self._met:  # nobody said that the last one was taken
                self.obstacle = "a step of an optimizer raised an error"
            self._stepping = True
            if not self._met:
                return
            self._changed.wait_for(lambda: not self._handing)
        if not self._over.is_set() and not self.obstacle:
            self._hand_gradients(index)

    def after_optimizer(self) -> None:
        """The step has been taken."""
        if self._met and not self.obstacle:
            self._elsewhere.note()
            self._states = marks_of_states(self._state.optimizers)
        with self._changed:
            self._stepping = False
            self._changed.notify_all()

    def finish(self, tree: dict[str, Any], *, large: Mapping[str, Any]) -> Transferred:
        """Hand over what is left at the switch: everything where following did not work.

        Args:
            tree: Position and committed steps.
            large: See ``Moment.large``.

        Raises:
            LinkBrokenError: The joiner is gone.
            StateCorruptError: What arrived is not what was sent.
        """
        self._await_thread()
        if not self.obstacle and self._units.are_outdated():
            self.obstacle = _OTHER_PARAMETERS
        if not self.obstacle:
            self.obstacle = self._written_elsewhere()
        # What has not changed since the joiner was met is there already.
        new = {name: each for name, each in large.items() if name not in self._told}
        structure = self._state.structure.tree(shapes=True)
        tree = {**tree, "large": new, "structure": structure}
        if self.obstacle:
            content = {"kind": "copy", "state": self._state.tree(), **tree}
        else:
            units = {name: self._units.tree(name) for name in self._written_late()}
            content = {"kind": "rest", "rest": self._state.rest(), "units": units, **tree}
        return send_tree(self._link, content, epoch=self._epoch)

    def prove(self) -> None:
        """After ``finish``: tell the joiner what its state must look like.

        Raises:
            LinkBrokenError: The joiner is gone.
        """
        self._await_thread()
        prints = {name: self._units.fingerprint(name) for name in self._units.names}
        self._send({"kind": "prints", "prints": prints})

    def pause(self) -> Link | None:
        """End it, and give the link back: the joiner waits there for whoever goes on.

        Returns:
            The link; None while the thread waits for the joiner, which is on its way: ask again
            until it has come.
        """
        self._paused = True
        if not self.is_met and not self._deferred and self._thread.is_alive():
            return None
        self._over.set()
        with self._changed:
            self._changed.notify_all()
        self._join()
        return self._link

    @property
    def is_met(self) -> bool:
        """Whether the joiner's program is where the job stood when this was made."""
        return self._met

    def defer(self, reason: str) -> None:
        """Before ``start``: hand nothing over before the switch, when the joiner is met, too."""
        self.obstacle, self._deferred = reason, True

    def meet(self, moment: Moment) -> None:
        """Tell the joiner where the job stands, and wait until its program is there.

        Args:
            moment: Where the job stands.

        Raises:
            LinkBrokenError: It is gone.
        """
        told = {**moment.common(), "voted": moment.voted.to_tree(), "feeds": moment.position.feeds}
        self._send(
            {
                "kind": "place",
                **told,
                "structure": self._state.structure.tree(shapes=True),
                "large": moment.large,
            }
        )
        self._told.update(moment.large)
        await_arrival(self._link, epoch=self._epoch)
        with self._changed:
            self._changed.wait_for(lambda: not self._stepping or self._over.is_set())
            self._met = True

    def cancel(self) -> None:
        """End it; the link is closed. Again does nothing."""
        self._stop()
        self._join()
        if self._thread.is_alive():
            log.warning("following is over, but its thread is not: its link stays open")
        else:
            self._link.close()

    def _join(self) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=_STALL_TIMEOUT_S)

    def _await_thread(self) -> None:
        """Return when the thread hands nothing over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._handing)

    def _hand_gradients(self, index: int) -> None:
        """Never raises: that would be an error of the optimizer's step."""
        try:
            self._send(self._step_of(index))
        except _NotFollowedError as error:
            self.obstacle = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the move
            self._break(error)
            return
        with self._changed:
            self._steps_followed += len(self._sent) == len(self._units.names)
            self._idle = 0
            self._changed.notify_all()

    def _written_elsewhere(self) -> str:
        """What the joiner cannot know of the parameters, for people; empty if nothing."""
        if names := self._elsewhere.names():
            return f"{names[0]} is written to outside of its optimizer's step"
        if self._states and self._states != marks_of_states(self._state.optimizers):
            return "what an optimizer keeps of parameters was changed outside of its step"
        return ""

    def _step_of(self, index: int) -> dict[str, Any]:
        if unknown := self._written_elsewhere():
            raise _NotFollowedError(unknown)
        try:
            gradients = self._units.gradients(index, self._sent)
        except ProtocolError as error:
            raise _NotFollowedError(str(error)) from error
        settings = settings_of(self._state.optimizers[index])
        return {"kind": "step", "optimizer": index, "settings": settings, "gradients": gradients}

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self._deferred:
                self._bring_up_to_date()
            if self._over.is_set() or self._paused:
                return
            if self.obstacle:
                log.warning("state is copied at the switch, not followed", reason=self.obstacle)
            self._current()
        except Exception as error:  # noqa: BLE001 - a thread that ends silently is waited for
            self._break(error)

    def _bring_up_to_date(self) -> None:
        self.meet(self._moment)
        if self._paused:
            return
        try:
            self._check_followed()
            self._hand_units()
            self._await_followed_steps()
            self._compare()
        except _NotFollowedError as error:
            self.obstacle = str(error)

    def _written_late(self) -> list[str]:
        """Units without an optimizer that were written to since they were handed over.

        The joiner cannot follow that by steps of its own.
        """
        if not self._untrained:
            return []
        now = self._units.untrained()
        return [
            name for name, was in self._untrained.items() if name in self._late or now[name] != was
        ]

    def _hand_units(self) -> None:
        with self._between_steps():
            self._untrained = self._units.untrained()
        for names in self._units.batches(_BATCH_BYTES):
            with self._between_steps():
                started = time.perf_counter()
                units = {name: self._units.tree(name) for name in names}
                self._send({"kind": "unit", "units": units})
                self._sent.update(names)
                took = time.perf_counter() - started
            self._over.wait(took * (1 / _DUTY - 1))

    def _await_followed_steps(self) -> None:
        """Wait until every unit has followed steps, so that a comparison means it.

        A program may change parameters behind its last optimizer's step: what it did there is seen
        once an optimizer has taken one step more than there are optimizers.
        """
        with self._changed:
            self._idle = 0
            while self._steps_followed <= len(self._state.optimizers):
                self._check_wanted()
                self._check_followed()
                if self._idle > _MOST_IDLE:
                    raise _NotFollowedError(f"no optimizer took a step in {self._idle} steps")
                self._changed.wait(timeout=_LOOK_S)

    def _compare(self) -> None:
        for names in self._units.batches(_BATCH_BYTES):
            with self._between_steps():
                started = time.perf_counter()
                own = {name: self._units.fingerprint(name) for name in names}
                self._send({"kind": "compare", "units": list(names)})
                answer, _ = receive_tree(
                    self._link, epoch=self._epoch, live={}, first_timeout_s=_STALL_TIMEOUT_S
                )
                took = time.perf_counter() - started
            different = [name for name in names if answer.get(name) != own[name]]
            self._late.update(name for name in different if name in self._untrained)
            different = [name for name in different if name not in self._untrained]
            if different:
                raise _NotFollowedError(f"{different[0]} differs after a followed step")
            self._over.wait(took * (1 / _DUTY - 1))

    @contextlib.contextmanager
    def _between_steps(self) -> Iterator[None]:
        with self._changed:
            while self._stepping:  # the training thread goes first
                self._check_wanted()
                self._changed.wait(timeout=_LOOK_S)
            self._check_wanted()
            self._check_followed()
            self._handing = True
        try:
            yield
        finally:
            with self._changed:
                self._handing = False
                self._changed.notify_all()

    def _check_wanted(self) -> None:
        if self._over.is_set() or not self._wanted():
            raise LinkBrokenError("the migration is off")

    def _check_followed(self) -> None:
        if self.obstacle:
            raise _NotFollowedError(self.obstacle)

    def _send(self, tree: dict[str, Any]) -> None:
        sent = send_tree(
            self._link, tree, epoch=self._epoch, checked=False, stall_timeout_s=_STALL_TIMEOUT_S
        )
        self.nbytes += sent.nbytes

    def _break(self, error: Exception) -> None:
        """Call the migration off: what the joiner has got so far is not known, or of no use."""
        if self._over.is_set():
            return
        reason = str(error)
        if not isinstance(error, ProtocolError | StaleEpochError):  # of our making, or the state's
            log.exception("following the state broke", exc_info=error)
            reason = f"{type(error).__name__} while following the state: {error}"
        self._stop()
        if self._wanted():
            self._lost(reason)

    def _stop(self) -> None:
        self._over.set()
        self._link.shutdown()
        with self._changed:
            self._changed.notify_all()
