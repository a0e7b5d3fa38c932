"""What a program leaves to the end of its process: threads that still write, exit handlers.

Workers end by ``os._exit``: an interpreter that shuts down would wait for threads of ours.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Final

from trainmover_executor.worker.adapters.files import flush_files

__all__ = ["end_program", "ends_when_released"]

_EXECUTORS: Final = (ThreadPoolExecutor, ProcessPoolExecutor)
_OURS: Final = "tm-"
"""What names of our threads begin with."""


def end_program() -> None:
    """Wait for the program's threads and run its exit handlers, as an interpreter that ends does.

    A thread may be writing a checkpoint, and a tracker sends what it holds back in a handler.
    """
    _wait_for_threads()
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public name for it


@contextlib.contextmanager
def ends_when_released() -> Iterator[None]:
    """SIGTERM lets this process end once the program's threads have, for as long as this lasts.

    For a leaver, whose slot is in other hands: its exit handlers, and what the program does at
    SIGTERM, would close or overwrite what the joiner goes on with (a tracker's run, a checkpoint).
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # nobody but the main thread may set a handler, and one that is native stays
        return
    signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_signum: int, _frame: object) -> None:
    _wait_for_threads()
    flush_files()
    os._exit(0)


def _wait_for_threads() -> None:
    """Those of the program that are no daemons; executors do first what was submitted to them.

    What the interpreter does itself would end the executors of our threads, too, which have to
    live until this rank's end is known.
    """
    executors = [each for each in gc.get_objects() if issubclass(type(each), _EXECUTORS)]
    for executor in executors:
        if not getattr(executor, "_thread_name_prefix", "").startswith(_OURS):
            executor.shutdown()
    while threads := [each for each in threading.enumerate() if _is_programs(each)]:
        threads[0].join()


def _is_programs(thread: threading.Thread) -> bool:
    ours = thread is threading.main_thread() or thread.name.startswith(_OURS)
    return not (ours or thread.daemon)
