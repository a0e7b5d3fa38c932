"""One transition of the planner while it is being made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from trainmover.commands import Command as MachineCommand
from trainmover.commands import Stop
from trainmover.job.tables import Table
from trainmover.job.topology import Frozen
from trainmover.protocol.migration import Migration
from trainmover_planner.state.chart import JOB
from trainmover_planner.state.effects import Command, PublishFact, Reply, SendCommand
from trainmover_planner.state.inventory import Incarnation
from trainmover_planner.state.state import State

__all__ = [
    "Transition",
]


class Transition:
    """One transition while it is being made: the state so far and the commands so far.

    Attributes:
        changed: Fields of the state that changed since the decisions looked at them.
        touched: All fields that changed in this transition.
    """

    def __init__(self, state: State, now_s: float, *, replay: bool = False) -> None:
        self.state = state
        self.now_s = now_s
        self.replay = replay
        self.commands: list[Command] = []
        self.changed: set[str] = set()
        self.touched: set[str] = set()

    def set(self, **changes: Any) -> None:
        """Change fields of the state, and let decisions look at them."""
        self.changed.update(self._change(changes))

    def note(self, **changes: Any) -> None:
        """Change fields in a way that no decision looks at: it would find nothing to do."""
        self._change(changes)

    def _change(self, changes: dict[str, Any]) -> list[str]:
        state = self.state
        if not self.replay and "phase" in changes:  # what is read again may begin in the middle
            JOB.check(state.phase, changes["phase"])
        names = [name for name, value in changes.items() if _differs(getattr(state, name), value)]
        if names:
            self.state = replace(state, **{name: changes[name] for name in names})
            self.touched.update(names)
        return names

    def put(self, name: str, key: object, value: object) -> None:
        """Set one entry of a mapping of the state."""
        mapping = getattr(self.state, name)
        if isinstance(mapping, Table):
            self.set(**{name: mapping.put(key, value)})
        else:
            self.set(**{name: MappingProxyType({**mapping, key: value})})

    def drop(self, name: str, key: object) -> None:
        """Remove one entry of a mapping of the state."""
        mapping = getattr(self.state, name)
        if isinstance(mapping, Table):
            self.set(**{name: mapping.drop(key)})
        elif key in mapping:
            self.set(**{name: MappingProxyType({k: v for k, v in mapping.items() if k != key})})

    def keep(self, one: Migration, *, looked_at: bool = True) -> None:
        """Set a migration.

        Args:
            one: The migration.
            looked_at: Whether a decision may follow from what changed in it.
        """
        state = self.state
        ids = state.open
        if one.open != (one.id in ids):
            ids = (*ids, one.id) if one.open else tuple(id for id in ids if id != one.id)
        known = MappingProxyType({**state.migrations, one.id: one})
        if looked_at:
            self.set(migrations=known, open=ids)
        else:
            self.note(migrations=known, open=ids)

    def send(
        self,
        machine: str,
        command: MachineCommand,
        *,
        id: str,
        urgent: bool = False,
        trace: Mapping[str, str] | None = None,
    ) -> None:
        """Queue a command; nothing is sent while facts are read again."""
        if not self.replay:
            self.commands.append(SendCommand(machine, command, id, urgent, trace or {}))

    def publish(self, payload: Frozen, *, id: str, trace: Mapping[str, str] | None = None) -> None:
        """Publish a fact, or, while facts are read again, expect to read it."""
        fact = PublishFact(payload, f"{self.state.job}:{id}", trace or {})
        if self.replay:
            self.put("unannounced", fact.id, fact)
        else:
            self.commands.append(fact)

    def reply(self, request: str, body: Frozen) -> None:
        """Answer a request."""
        self.commands.append(Reply(request, body))

    def stop_everybody(self, reason: str) -> None:
        """The job is over: tell every machine."""
        self._stop((host.incarnation for host in self.state.inventory.sorted()), reason)

    def stop_newcomers(self, reason: str) -> None:
        """The job has been over: tell those that registered since."""
        hosts = (self.state.inventory.get(name) for name in sorted(self.state.newcomers))
        self._stop((host.incarnation for host in hosts if host is not None), reason)

    def _stop(self, incarnations: Iterable[Incarnation], reason: str) -> None:
        stop = Stop(reason=reason)
        for name, generation in incarnations:
            id = f"{self.state.job}:{name}:{generation}:stop"
            self.send(name, stop, id=id, urgent=True)
        self.set(newcomers=Table())


def _differs(old: object, new: object) -> bool:
    # Only what is short is compared: equal tables would be compared entry by entry.
    return old is not new and not (isinstance(new, _SHORT) and old == new)


_SHORT = (int, float, str, tuple, frozenset, type(None))
