"""What a program waits for: one operation of a process group.

An error of an operation is raised where the program waits for it, and not through the future: that
would hand it to C++, where DDP takes it for tensors, and the process dies of it. Programs that wait
in C++ only (DDP) get it from the next operation, or at the vote.
"""

# mypy: disable-error-code="override"

from __future__ import annotations

import threading
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work

from trainmover_executor.collectives.communicator.checks import CollectiveError

__all__ = ["OperationWork"]

_NONE = timedelta(0)

Tensors = list[torch.Tensor]


class OperationWork(Work):
    """One operation that was issued.

    Args:
        op: Its name, for messages.
        result: What its future resolves to.
        source: Rank in the group whose message is received; -1 for anything else.
        timeout: How long ``wait`` waits where it is not told; zero for as long as it takes.

    Attributes:
        error: Why it failed; None as long as it did not.
    """

    def __init__(
        self, op: str, result: Tensors, *, source: int = -1, timeout: timedelta = _NONE
    ) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self._op = op
        self._result = result
        self._source = source
        self._timeout = timeout
        self._future: torch.futures.Future[Tensors] = torch.futures.Future()

    def finish(self, error: BaseException | None = None) -> None:
        """The operation is over; called once."""
        self.error = error
        self._future.set_result(self._result)

    def wait(self, timeout: timedelta = _NONE) -> bool:
        """Return when the operation is complete.

        Args:
            timeout: Longest wait; zero for that of the operation.

        Raises:
            CollectiveError: It is not complete in time. It stays under way, and so does all that
                comes after it in its group.
        """
        limit = timeout if timeout > _NONE else self._timeout
        if limit > _NONE and not self._done_within(limit):
            raise CollectiveError(
                f"{self._op} is not complete after {limit.total_seconds():g} s: some rank has not "
                "come to it. Do all ranks of the group call it?"
            )
        self._future.wait()
        if self.error is not None:
            raise self.error
        return True

    def _done_within(self, limit: timedelta) -> bool:
        done = threading.Event()
        self._future.add_done_callback(lambda _: done.set())
        return done.wait(limit.total_seconds())

    def synchronize(self) -> None:
        """Same as ``wait``."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Tensors]:
        """Resolves to the tensors that the operation wrote."""
        return self._future

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self._future.done()

    def is_success(self) -> bool:
        """Whether it is over and did not fail."""
        return self._future.done() and self.error is None

    def exception(self) -> BaseException | None:
        """Why it failed."""
        return self.error

    def result(self) -> Tensors:
        """The tensors that the operation wrote."""
        return self._result

    def source_rank(self) -> int:
        """Rank in the group whose message was received."""
        return self._source

    _source_rank = source_rank
