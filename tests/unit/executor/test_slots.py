"""Memory that the two ends of a link share on one host."""

from __future__ import annotations

import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trainmover_executor.links.shared_memory import slots
from trainmover_executor.links.shared_memory.slots import SharedMemory


def test_who_sends_and_who_receives_have_the_same_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both use a link for the first time at once: a second pair would begin at the first slot."""
    shared, mapped = SharedMemory.create(), threading.Event()

    class Slow:
        @staticmethod
        def mmap(*args: Any) -> mmap.mmap:
            mapped.wait(0.5)  # the other thread comes, or has to wait
            mapped.set()
            return mmap.mmap(*args)

    monkeypatch.setattr(slots, "mmap", Slow)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: shared.rings(), range(2))
    assert first is second
    shared.close()
