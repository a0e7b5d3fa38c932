"""Goes back to the ``with`` statement of a step that has to be done again.

A step that is aborted must be done again before the code behind its body runs: that code counts
steps, adds up losses and leaves the loop. Python lets a trace function set ``frame.f_lineno``,
which is how debuggers jump (https://docs.python.org/3/reference/datamodel.html#frame-objects), so
the next line of the frame that held the ``with`` statement becomes that statement again. Tracing is
on for the moment between the end of the body and that line, and costs nothing at any other time.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["go_back"]


def go_back(frame: FrameType, line: int, *, loop: FrameType | None = None) -> None:
    """Have ``frame`` go on at ``line`` once the running ``__exit__`` returns.

    Where the frame ends before it comes to another line (a function whose last statement is the
    ``with``), its caller goes back to the line of the call. Where Python does not allow a jump
    (the body left its loop), or the loop is on that line, too (``for step in steps: run(step)``),
    nothing happens: the program goes on behind the body, and gets the step again from its loop.

    Args:
        frame: The frame that executes the ``with`` statement.
        line: The line of that statement.
        loop: The frame that runs the loop over the steps: when it ends, the loop is left.
    """
    _Jump(frame, line, loop).arm()


class _Jump:
    """One jump that is about to happen: trace functions of one frame, put back afterwards."""

    def __init__(self, frame: FrameType, line: int, loop: FrameType | None) -> None:
        self._frame = frame
        self._line = line
        self._loop = loop
        self._tracing: Any = None
        self._local: Callable[..., Any] | None = None

    def arm(self) -> None:
        self._tracing = sys.gettrace()
        self._local = self._frame.f_trace
        self._frame.f_trace = self._at
        sys.settrace(_trace_no_call)

    def _at(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line" and frame.f_lineno != self._line:
            with contextlib.suppress(ValueError), warnings.catch_warnings():
                # Since 3.12 a jump gives names that are not bound yet the value None, and says so.
                warnings.simplefilter("ignore", RuntimeWarning)
                frame.f_lineno = self._line  # type: ignore[misc] # in a trace function it may be set
            self._disarm()
            return self._local
        if event == "return":
            caller = frame.f_back
            self._disarm()
            if caller is not None and frame is not self._loop and not _is_for_line(caller):
                _Jump(caller, caller.f_lineno, self._loop).arm()
            return None
        return self._at

    def _disarm(self) -> None:
        self._frame.f_trace = self._local
        sys.settrace(self._tracing)


def _is_for_line(frame: FrameType) -> bool:
    """Whether the line on which ``frame`` is begins a loop that it is in: it would begin anew."""
    return any(
        each.opname.startswith("FOR_ITER")
        and each.positions is not None
        and each.positions.lineno == frame.f_lineno
        and each.offset < frame.f_lasti
        for each in dis.get_instructions(frame.f_code)
    )


def _trace_no_call(_frame: FrameType, _event: str, _argument: Any) -> None:
    """Functions that are called meanwhile are not traced."""
