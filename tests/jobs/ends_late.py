"""Leaves to the interpreter's end what many programs leave to it, and ends as its argument says."""

from __future__ import annotations

import atexit
import logging
import logging.handlers
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

folder, how = Path(sys.argv[1]), sys.argv[2]


def write(name: str, *, after_s: float = 0.0) -> None:
    time.sleep(after_s)  # what takes a while: a checkpoint, an upload
    (folder / name).write_text("whole")


memory = logging.handlers.MemoryHandler(1000, target=logging.FileHandler(folder / "log"))
logging.getLogger("program").addHandler(memory)
logging.getLogger("program").error("whole")
atexit.register(write, "handler", after_s=0.2)
threading.Thread(target=write, args=("thread",), kwargs={"after_s": 0.5}).start()
ThreadPoolExecutor().submit(write, "pool", after_s=0.5)
if how == "raise":
    raise RuntimeError("the program's own")
if how == "exit":
    sys.exit(7)
