"""Who takes in what was decoded: facts and telemetry that are well-formed and make no sense."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from tests.hostile.decoders import _facts

from trainmover.detection.registry import load
from trainmover.events import Envelope, decode
from trainmover_console.view.live import Watched
from trainmover_console.view.summary import summarise
from trainmover_detector.core import DetectorCore
from trainmover_launcher.ledger import Ledger

__all__ = ["READERS", "Story", "story_of"]

Story = Sequence[Envelope]


def story_of(lines: Sequence[object]) -> list[Envelope]:
    """The facts among some lines, as readers of the bus get them."""
    found = []
    for line in lines:
        try:
            assert isinstance(line, dict)
            body = line["body"] if isinstance(line["body"], str) else json.dumps(line["body"])
            found.append(
                decode(
                    str(line["subject"]),
                    {str(name): str(value) for name, value in line["headers"].items()},
                    body.encode(errors="surrogatepass"),
                )
            )
        except Exception:  # noqa: BLE001 - a dead letter; see the decoders
            continue
    return found


def _detector(story: Story) -> None:
    core = DetectorCore(load())
    for number, fact in enumerate(story):
        core.on_fact(fact.payload, float(number))
        core.tick(number + 0.5)


def _watcher(story: Story) -> None:
    watched = Watched("job")
    for fact in story:
        watched.apply(fact)
        watched.rate(fact.time)
        json.dumps(watched.as_data(fact.time))
    watched.view.as_data()


def _launcher(story: Story) -> None:
    ledger = Ledger(nnodes_min=2, running={"node-0", "node-1"})
    for fact in story:
        ledger.learn(fact)
        ledger.ending()
        summarise(fact)


READERS: Final[dict[str, Callable[[Story], None]]] = {
    "the detector's core": _detector,
    "who watches": _watcher,
    "the launcher": _launcher,
}
GOLDEN: Final = _facts()
