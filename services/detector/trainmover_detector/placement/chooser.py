"""Chooses which stages agents run, and stays with it until traffic says otherwise for long; pure.

A change takes two looks that agree, so that it follows traffic within some seconds and a single
burst changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainmover.detection import CollectiveWindow
from trainmover.events.incident import AnalysisPlaced
from trainmover_detector.placement.costs import MEASURED, Costs, Traffic, cheapest, estimate
from trainmover_detector.placement.traffic import TrafficMeter

__all__ = ["Chooser"]

_LOOK_S: Final = 2.0
"""Between two looks at the traffic: two periods of a large job."""
_LOOKS: Final = 2
"""So many looks in a row must agree on a change."""
_MOST_LOOKS: Final = 30
_CALM_S: Final = 600.0
"""Traffic that comes, goes and comes again within this time is given up ever more slowly."""
_WORTH_CPU: Final = 0.05
"""Share of a core that stages at the agents must save the detector. Operations that are sent can
be shown, recorded and replayed, so they are not given up for less."""
_STAYS_CPU: Final = 0.025
"""Below this the stages come back."""
_MOST_AGENT_CPU: Final = 0.002
"""Share of a core for each rank."""
_AGAIN_S: Final = 5.0
_MOST_AGAIN_S: Final = 60.0
"""A choice that machines do not follow is said again, ever less often: they may be older."""


class Chooser:
    """The split of a job's analysis.

    Args:
        allowed: The stages that agents may run, as far as the detectors that are asked allow it.
        costs: What analysis takes.

    Attributes:
        at_agents: The stages that agents run.
    """

    def __init__(self, allowed: Callable[[], tuple[str, ...]], *, costs: Costs = MEASURED) -> None:
        self.at_agents: tuple[str, ...] = ()
        self._allowed = allowed
        self._costs = costs
        self._meter = TrafficMeter()
        self._looked_s: float | None = None
        self._agreed = 0
        self._down_looks = _LOOKS
        self._returned_s: float | None = None
        self._said_s = 0.0
        self._again_s = _AGAIN_S

    def take(self, window: CollectiveWindow) -> None:
        """Take in a batch."""
        self._meter.add(window)

    def remember(self, fact: AnalysisPlaced) -> None:
        """What an earlier run of this service chose is what agents do."""
        self.at_agents = fact.at_agents

    def look(self, now_s: float) -> list[AnalysisPlaced]:
        """Choose anew where it is time to; what agents must be told."""
        if self._looked_s is not None and now_s - self._looked_s < _LOOK_S:
            return []
        began_s, self._looked_s = self._looked_s, now_s
        unlike = self._meter.unlike(self.at_agents)
        traffic = self._meter.take(now_s - began_s if began_s is not None else _LOOK_S)
        if traffic is None or began_s is None:
            return []
        return self._choose(traffic, unlike, now_s)

    def _choose(self, traffic: Traffic, unlike: int, now_s: float) -> list[AnalysisPlaced]:
        allowed = self._allowed()
        if self.at_agents != allowed[: len(self.at_agents)]:
            # A detector reads what agents leave out: that does not wait for traffic.
            return self._change((), traffic, now_s)
        wanted = self._wanted(traffic, allowed)
        if wanted != self.at_agents:
            self._agreed += 1
            changes = self._agreed >= (_LOOKS if wanted else self._down_looks)
            return self._change(wanted, traffic, now_s) if changes else []
        self._agreed = 0
        if unlike and now_s - self._said_s >= self._again_s:
            self._again_s = min(2 * self._again_s, _MOST_AGAIN_S)
            return self._say(traffic, now_s)
        return []

    def _wanted(self, traffic: Traffic, allowed: tuple[str, ...]) -> tuple[str, ...]:
        central = estimate((), traffic, self._costs)
        best = cheapest(traffic, self._costs, allowed=allowed, most_agent_cpu=_MOST_AGENT_CPU)
        saved = central.detector_cpu - best.detector_cpu
        return best.at_agents if saved >= (_STAYS_CPU if self.at_agents else _WORTH_CPU) else ()

    def _change(
        self, at_agents: tuple[str, ...], traffic: Traffic, now_s: float
    ) -> list[AnalysisPlaced]:
        if not at_agents:
            self._returned_s = now_s
        elif self._returned_s is not None and now_s - self._returned_s < _CALM_S:
            self._down_looks = min(2 * self._down_looks, _MOST_LOOKS)
        else:
            self._down_looks = _LOOKS
        self.at_agents, self._agreed, self._again_s = at_agents, 0, _AGAIN_S
        return self._say(traffic, now_s)

    def _say(self, traffic: Traffic, now_s: float) -> list[AnalysisPlaced]:
        self._said_s = now_s
        chosen = estimate(self.at_agents, traffic, self._costs)
        return [
            AnalysisPlaced(
                at_agents=self.at_agents,
                machines=traffic.machines,
                operations_s=round(traffic.machines * traffic.operations_s, 1),
                detector_cpu=round(chosen.detector_cpu, 4),
                detector_cpu_central=round(estimate((), traffic, self._costs).detector_cpu, 4),
            )
        ]
