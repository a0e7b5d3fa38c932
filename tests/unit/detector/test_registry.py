from __future__ import annotations

import itertools
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from trainmover.detection import CollectiveWindow, Detector, Finding
from trainmover.detection.guard import Guarded
from trainmover.detection.registry import GROUP, load
from trainmover.telemetry.records import RECORD


class Plugin:
    api_version = 1
    findings: tuple[object, ...] = ()

    def observe(self, window):
        return self.findings

    def notice(self, evidence):
        return ()

    def membership_changed(self, membership):
        return None

    def tick(self, now_s):
        return self.findings


class FromTheFuture(Plugin):
    api_version = 2


class Explosive(Plugin):
    def __init__(self):
        raise RuntimeError("boom")


class Half:
    api_version = 1


def point(name, attribute):
    return EntryPoint(name, f"{__name__}:{attribute}", GROUP)


@pytest.fixture
def points(monkeypatch):
    import sys

    module = type(sys)(__name__)
    module.__dict__.update(globals())
    monkeypatch.setitem(sys.modules, __name__, module)
    return lambda *names: [point(name.lower(), name) for name in names]


def test_the_built_in_detectors_come_through_the_same_door():
    loaded = load()
    assert {"liveness", "straggler"} <= {guarded.name for guarded in loaded}
    assert all(not guarded.quarantined for guarded in loaded)
    assert all(isinstance(guarded.detector, Detector) for guarded in loaded)


def test_names_and_shadow(points):
    loaded = load(found=points("Plugin", "FromTheFuture"), names=["plugin"], shadow=["plugin"])
    assert [(guarded.name, guarded.mode) for guarded in loaded] == [("plugin", "shadow")]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FromTheFuture", "speaks version 2"),
        ("Explosive", "RuntimeError: boom"),
        ("Half", "lacks methods"),
        ("Missing", "AttributeError"),
    ],
)
def test_what_cannot_be_used_is_named(points, name, reason):
    (guarded,) = load(found=points(name))
    assert reason in guarded.quarantined
    assert guarded.tick(1.0) == []


def timed(*calls_s: float) -> Guarded:
    """A detector whose calls take so long."""
    spans = ((0.0, took_s) for took_s in calls_s)
    return Guarded("slow", Plugin(), clock=itertools.chain.from_iterable(spans).__next__)


def test_over_budget():
    guarded = timed(0.3, 0.1, 0.3, 0.3)
    for now_s in (0.0, 4.0, 5.0, 9.0):
        assert not guarded.quarantined
        guarded.tick(now_s)
    assert guarded.quarantined == (
        "too slow: 3 calls within 10 s took longer than 0.25 s, the last 0.300 s"
    )


def test_one_long_call_in_a_while_is_forgiven():
    """The interpreter collects its garbage in whoever happens to run."""
    guarded = timed(*[0.3] * 20)
    for index in range(20):
        guarded.tick(index * 5.0)
    assert not guarded.quarantined


@pytest.mark.parametrize(
    "nonsense",
    [
        "a string",
        Finding("k", "m", 0, 1.5, "too sure"),
        Finding("k", "m", 0, float("nan"), "unsure"),
        Finding("k", "m", 0, 0.5, "no json", {"array": np.zeros(2)}),
        Finding("k", "m", 0, 0.5, "no json", {"value": float("nan")}),
    ],
)
def test_nonsense_is_quarantined(nonsense):
    plugin = Plugin()
    plugin.findings = (nonsense,)
    guarded = Guarded("odd", plugin)
    assert guarded.tick(1.0) == []
    assert guarded.quarantined


def test_a_good_finding_passes(membership_of):
    plugin = Plugin()
    plugin.findings = (Finding("k", None, None, 0.5, "all slow", {"steps": 3}),)
    guarded = Guarded("good", plugin)
    window = CollectiveWindow("w-0", 1, membership_of(), np.zeros(0, RECORD), 1.0)
    assert guarded.observe([window]) == list(plugin.findings)
    assert not guarded.quarantined
