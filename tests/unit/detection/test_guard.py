"""Whatever a plugin does, the service goes on."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap

import pytest

from trainmover.detection import BaseDetector, Finding
from trainmover.detection.guard import Guarded


class Talker(BaseDetector):
    def __init__(self, findings) -> None:
        self.findings = findings

    def tick(self, now_s):
        return self.findings()


def one(number: int = 0) -> Finding:
    return Finding("noise", f"m{number}", None, 0.5, "noise")


def test_a_detector_that_never_stops_talking_is_quarantined() -> None:
    guarded = Guarded("endless", Talker(lambda: map(one, itertools.count())))
    assert guarded.tick(1.0) == []
    assert "it floods: more than 256 findings in one call" in guarded.quarantined


def test_a_detector_that_talks_all_the_time_is_quarantined() -> None:
    guarded = Guarded("busy", Talker(lambda: map(one, range(100))))
    heard = sum(len(guarded.tick(index * 0.2)) for index in range(40))
    assert heard < 2000
    assert "in less than 10 s" in guarded.quarantined


def test_one_that_repeats_its_finding_is_not() -> None:
    guarded = Guarded("steady", Talker(lambda: [one()]))
    assert sum(len(guarded.tick(index * 0.2)) for index in range(4000)) == 4000


def test_advice_must_be_known() -> None:
    wild = Finding("k", "m", None, 0.5, "s", advice="explode")  # type: ignore[arg-type]
    guarded = Guarded("wild", Talker(lambda: [wild]))
    assert guarded.tick(1.0) == []
    assert "explode" in guarded.quarantined


@pytest.mark.parametrize("body", ["time.sleep(60)", "while True: pass", "os.read(pipe, 1)"])
def test_a_detector_that_never_returns_is_interrupted(body: str) -> None:
    """In a process of its own: the alarm is a signal."""
    script = f"""
    import os, time
    from trainmover.detection import BaseDetector
    from trainmover.detection.guard import Alarm, Guarded
    pipe = os.pipe()[0]
    class Stuck(BaseDetector):
        def tick(self, now_s):
            try:
                {body}
            except Exception:
                pass
    alarm = Alarm(limit_s=0.3)
    stuck, sound = Guarded("stuck", Stuck(), alarm=alarm), Guarded("b", BaseDetector(), alarm=alarm)
    began = time.monotonic()
    with alarm.armed():
        assert stuck.tick(1.0) == []
        assert sound.tick(1.0) == []
    assert time.monotonic() - began < 10
    assert "did not return in 0.3 s" in stuck.quarantined, stuck.quarantined
    assert not sound.quarantined
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
