"""State charts: the phases of something, and every way from one to another.

A core names its chart once; changing the phase checks it, and the documentation is drawn from it
(``docs/concepts/states.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmover.errors import ProtocolError

__all__ = ["Arrow", "Chart"]


@dataclass(frozen=True, slots=True)
class Arrow:
    """One way between two phases.

    Attributes:
        source: Phase before.
        target: Phase after.
        when: What happens.
    """

    source: str
    target: str
    when: str


class Chart:
    """The phases of one kind of thing.

    Args:
        what: Of what, for messages.
        start: The first phase.
        arrows: Every way between two phases.
    """

    def __init__(self, what: str, *, start: str, arrows: tuple[Arrow, ...]) -> None:
        self.what = what
        self.start = start
        self.arrows = arrows
        self._known = frozenset((arrow.source, arrow.target) for arrow in arrows)

    def check(self, before: str, after: str) -> None:
        """Make sure that a phase may follow another, or itself.

        Raises:
            ProtocolError: The chart has no such arrow: a bug.
        """
        if before != after and (before, after) not in self._known:
            raise ProtocolError(f"{self.what} cannot go from {before} to {after}")

    def mermaid(self) -> str:
        """As a Mermaid state diagram."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.start}"]
        lines += [f"    {arrow.source} --> {arrow.target}: {arrow.when}" for arrow in self.arrows]
        sources = {arrow.source for arrow in self.arrows}
        ends = dict.fromkeys(arrow.target for arrow in self.arrows if arrow.target not in sources)
        lines += [f"    {phase} --> [*]" for phase in ends]
        return "\n".join(lines) + "\n"
