"""What the parts of a simulated job share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.checks import Checks

from trainmover.testing.simulation import SimBus, Simulation

__all__ = ["Scene"]


@dataclass(slots=True)
class Scene:
    """One job in virtual time.

    Attributes:
        job: Name of the job.
        step_s: How long a step computes, seconds.
        max_steps: Length of the program.
        hear: Who takes telemetry: (machine, generation, epoch).
        unreachable: Whether nothing answers at a machine, not even a refusal.
        last_words: What dying workers printed.
    """

    sim: Simulation
    bus: SimBus
    checks: Checks
    job: str = "sim"
    step_s: float = 0.3
    max_steps: int = 1_000_000
    hear: list[Callable[[str, int, int], None]] = field(default_factory=list)
    unreachable: Callable[[str], bool] = lambda _: False
    last_words: str = ""

    def telemetry(self, machine: str, generation: int, epoch: int) -> None:
        """A machine's sign of life."""
        for listener in self.hear:
            listener(machine, generation, epoch)
