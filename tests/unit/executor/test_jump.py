"""The way back to the ``with`` statement, from every place a body may end at."""

from __future__ import annotations

import contextlib
import sys
import threading

import pytest

from trainmover_executor.program.jump import go_back


class Again:
    """A context manager whose body runs ``times`` times."""

    def __init__(self, times: int = 3, *, loop=None) -> None:
        self.left = times
        self.loop = loop

    def __enter__(self):
        self.frame = sys._getframe(1)
        self.line = self.frame.f_lineno
        return self

    def __exit__(self, *_):
        self.left -= 1
        if self.left > 0:
            go_back(self.frame, self.line, loop=self.loop)
        return True


@pytest.fixture(autouse=True)
def no_trace_is_left():
    before = sys.gettrace()
    yield
    assert sys.gettrace() is before


def test_the_body_runs_again_before_what_is_behind_it():
    log = []
    for _ in range(2):
        again = Again()
        with again:
            log.append("body")
        log.append("behind")
    assert log == ["body", "body", "body", "behind"] * 2


def test_a_function_that_ends_with_the_body_is_called_again():
    log = []
    again = Again()

    def helper():
        with again:
            log.append("body")

    helper()
    log.append("behind")
    assert log == ["body", "body", "body", "behind"]


def test_a_return_inside_of_the_body_happens_once():
    log = []
    again = Again()

    def helper():
        with again:
            log.append("body")
            return len(log)

    result = helper()
    log.append("behind")
    assert result == 3
    assert log == ["body", "body", "body", "behind"]


def test_other_context_managers_around_the_body_are_entered_as_often():
    log = []

    @contextlib.contextmanager
    def noted():
        log.append("enter")
        yield
        log.append("exit")

    again = Again(2)
    with again, noted():
        log.append("body")
    log.append("behind")
    assert log == ["enter", "body", "exit"] * 2 + ["behind"]


def test_a_context_manager_around_it_on_another_line_stays_entered():
    log = []

    @contextlib.contextmanager
    def noted():
        log.append("enter")
        yield
        log.append("exit")

    again = Again(2)
    with noted():
        with again:
            log.append("body")
        log.append("behind")
    assert log == ["enter", "body", "body", "behind", "exit"]


def test_continue_in_the_body_comes_after_it():
    log = []
    for index in range(2):
        again = Again(2)
        with again:
            log.append(index)
            continue
        log.append("behind")
    assert log == [0, 0, 1, 1]


def test_try_and_finally_around_the_body():
    log = []
    try:
        again = Again(2)
        with again:
            log.append("body")
        log.append("behind")
    finally:
        log.append("finally")
    assert log == ["body", "body", "behind", "finally"]


def test_what_the_body_raises_is_over_before_it_runs_again():
    log = []
    again = Again(2)
    with again:
        log.append(sys.exc_info()[0])
        raise ValueError("a consequence")
    log.append(sys.exc_info()[0])
    assert log == [None, None, None]


def test_a_body_that_leaves_its_loop_is_not_run_again_and_nothing_breaks():
    log = []
    for index in range(3):
        again = Again(2)
        with again:
            log.append(index)
            break
    log.append("behind")
    assert log in ([0, "behind"], [0, 0, "behind"])


def test_the_frame_of_the_loop_is_where_it_ends():
    log = []

    def loop():
        frame = sys._getframe()
        again = Again(2, loop=frame)
        with again:
            log.append("body")
            return

    loop()
    log.append("behind")
    assert log == ["body", "behind"]


def test_a_debugger_goes_on_tracing():
    seen = []

    def debugger(frame, event, _argument):
        seen.append((frame.f_code.co_name, event))
        return debugger

    log = []

    def program():
        again = Again(2)
        with again:
            log.append("body")
        log.append("behind")

    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        program()
        assert sys.gettrace() is debugger
        seen.clear()
        program()
    finally:
        sys.settrace(before)
    assert log == ["body", "body", "behind"] * 2
    assert ("program", "call") in seen


def test_other_threads_are_not_traced():
    found = []
    again = Again(2)
    with again:
        thread = threading.Thread(target=lambda: found.append(sys.gettrace()))
        thread.start()
        thread.join()
    assert found == [None, None]


def test_a_loop_on_the_line_of_the_call_is_not_begun_anew():
    """It gives the step again by itself, as the iterator of the session does."""
    log, begun = [], []

    def helper(again):
        with again:
            log.append("body")

    def steps():
        begun.append(1)
        for _ in range(2):
            again = Again(times=2, loop=sys._getframe(1))
            while again.left > 0:
                yield again

    for again in steps(): helper(again)  # fmt: skip  # noqa: E701
    assert log == ["body"] * 4
    assert len(begun) == 1
