"""What the control thread leaves for the training thread: plans, and whether to go on."""

from __future__ import annotations

import threading
from typing import Final

from trainmover.commands import SaveCheckpoint
from trainmover.plan import Plan

__all__ = ["Mailbox"]

_WAIT_LOG_S: Final = 5.0


class Mailbox:
    """Plans of one rank; every method may be called from either thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._prepared: Plan | None = None
        self._leading: Plan | None = None
        self._frozen = False
        self._abort_pending = False
        self._joining: Plan | None = None
        self._recover: Plan | None = None
        self._save: SaveCheckpoint | None = None

    # -- planned moves ---------------------------------------------------------------------------

    def prepared(self, plan: Plan) -> None:
        """Phase 1 of ``plan`` is complete on this rank: it may vote for the switch."""
        with self._changed:
            self._prepared = plan
            self._changed.notify_all()

    def lead(self, plan: Plan) -> None:
        """This rank is a leaver of ``plan`` and has to bring its joiner's state up to date."""
        with self._changed:
            self._leading = plan

    @property
    def leading(self) -> Plan | None:
        """The plan whose joiner this rank has to bring up to date."""
        return self._leading

    def led(self, plan: Plan) -> bool:
        """The joiner is up to date: vote for the switch; False when the plan is off by now."""
        with self._changed:
            if self._leading != plan:
                return False
            self._prepared = plan
            return True

    def freeze(self) -> Plan | None:
        """The plan to vote for; it cannot be aborted until ``thaw``."""
        with self._changed:
            self._frozen = True
            return self._prepared

    def thaw(self, *, switching: bool) -> Plan | None:
        """The vote is over.

        Args:
            switching: The vote decided to switch: the plan is taken out.

        Returns:
            The plan that was aborted while the vote ran and is dropped now, or None.
        """
        with self._changed:
            self._frozen = False
            aborted, self._abort_pending = self._abort_pending, False
            if switching:
                self._prepared = None
                return None
            if aborted:
                dropped, self._prepared = self._prepared, None
                self._leading = None
                return dropped
            return None

    def abort(self, epoch: int) -> bool:
        """Forget the plan for ``epoch``; False when a vote about it is under way."""
        with self._changed:
            if self._joining is not None and self._joining.epoch == epoch:
                self._joining = None
                self._changed.notify_all()
            if self._leading is not None and self._leading.epoch == epoch and not self._frozen:
                self._leading = None
            if self._prepared is None or self._prepared.epoch != epoch:
                return True
            if self._frozen:
                self._abort_pending = True
                return False
            self._prepared = None
            return True

    # -- joiner ----------------------------------------------------------------------------------

    def join(self, plan: Plan) -> None:
        """This standby is a joiner of ``plan``."""
        with self._changed:
            self._joining = plan
            self._changed.notify_all()

    def wait_to_join(self, *, after_epoch: int) -> Plan:
        """Wait until this standby is needed, by a plan for a later epoch than ``after_epoch``."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted(after_epoch) is not None)
            plan = self._wanted(after_epoch)
            assert plan is not None  # noqa: S101 - the predicate above
            return plan

    def _wanted(self, after_epoch: int) -> Plan | None:
        for plan in (self._recover, self._joining):
            if plan is not None and plan.epoch > after_epoch:
                return plan
        return None

    def withdrawn(self, plan: Plan) -> bool:
        """Whether ``plan`` has been aborted or superseded."""
        with self._changed:
            if self._recover is not None and self._recover.epoch > plan.epoch:
                return True
            return plan not in (self._joining, self._recover)

    def joined(self, plan: Plan) -> None:
        """The joiner took its place: the plan is done with."""
        with self._changed:
            if self._joining == plan:
                self._joining = None

    # -- failures --------------------------------------------------------------------------------

    def recover(self, plan: Plan) -> None:
        """A failure plan arrived; only the newest counts."""
        with self._changed:
            if self._recover is None or plan.epoch > self._recover.epoch:
                self._recover = plan
                self._prepared = self._leading = None
                self._joining = None
            self._changed.notify_all()

    def wait_to_recover(self, *, after_epoch: int) -> Plan | SaveCheckpoint | None:
        """Wait for a failure plan newer than ``after_epoch``.

        Returns:
            The plan, or once a request to save meanwhile; None every 5 s without either, so that
            the caller can say that it waits.
        """

        def plan() -> Plan | None:
            known = self._recover
            return known if known is not None and known.epoch > after_epoch else None

        with self._changed:
            self._changed.wait_for(
                lambda: plan() is not None or self._save is not None, timeout=_WAIT_LOG_S
            )
            asked, self._save = self._save, None
            return plan() or asked

    def save(self, order: SaveCheckpoint) -> None:
        """The job may have to end: whoever waits for a plan is to save a checkpoint."""
        with self._changed:
            self._save = order
            self._changed.notify_all()

    def pending_recovery(self, *, after_epoch: int) -> bool:
        """Whether a newer failure plan waits."""
        with self._changed:
            return self._recover is not None and self._recover.epoch > after_epoch
