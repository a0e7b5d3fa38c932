"""Work of all ranks outside of a step's body, which is done again where a machine dies in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from lightning.fabric.utilities import rank_zero as fabric_rank_zero
from lightning.pytorch.utilities import rank_zero

from trainmover_executor.program.values.plain import is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable
from trainmover_executor.worker.runtime import Runtime

if TYPE_CHECKING:
    from trainmover_executor.frameworks.lightning.carried.state import FitState
    from trainmover_executor.training.session import Session

__all__ = ["Together", "tell_rank"]


class Together:
    """Decides whether work needs ``session.between_steps``: not in a body, and not inside of it.

    Args:
        runtime: This rank's.
        on_promotion: Called once, when a standby has taken over.

    Attributes:
        session: Of the fit; None before it.
        state: Likewise.
    """

    def __init__(self, runtime: Runtime, *, on_promotion: Callable[[], None]) -> None:
        self._runtime = runtime
        self._on_promotion = on_promotion
        self._was_shadow = runtime.sandboxed
        self._inside = False
        self.session: Session | None = None
        self.state: FitState | None = None

    @property
    def inside(self) -> bool:
        """Whether the process is in a body, or in work of all ranks: it may be done again."""
        return self._inside

    def begin_body(self) -> None:
        """A step's body begins, for the first time or again: it communicates by itself."""
        self._inside = True
        self.look()

    def end_body(self) -> None:
        """It has ended."""
        self._inside = False

    def look(self) -> None:
        """Have this process be what the session made of it: a shadow, or a rank of the job."""
        tell_rank(self._runtime)
        if self._was_shadow and not self._runtime.sandboxed:
            self._was_shadow = False
            self._on_promotion()

    def call(self, collective: Callable[[], Any], *, otherwise: Any = None) -> Any:
        """One collective, or another piece of work whose result is the same on all ranks.

        Args:
            collective: May be called more than once.
            otherwise: What it returns at a standby that cannot know the result.
        """
        if self._inside or self.session is None:
            return collective()
        done: list[Any] = []

        def whole() -> Any:
            done[:] = [collective()]
            return done[0]

        told = self._between(whole)
        if done:
            return done[0]
        return otherwise if told is None else told

    def do(self, work: Callable[[], Any]) -> Any:
        """Work of which each rank has a result of its own, and that changes the fit's state.

        A joiner that comes behind it takes the state of the rank that it replaces from there.

        Args:
            work: May be called more than once.
        """
        if self._inside or self.session is None:
            return work()
        done: list[Any] = []

        def whole() -> list[Any]:
            done[:] = [work()]
            return self._told(done[0])

        told = self._between(whole)
        if done or told is None or self.state is None:
            return done[0] if done else None
        mine = told[self._runtime.rank]
        self.state.load_state_dict(mine["state"])
        return restored(mine["result"], None)

    def _between(self, work: Callable[[], Any]) -> Any:
        assert self.session is not None  # noqa: S101 - asked before

        def inside() -> Any:
            self._inside = True
            self.look()
            return work()

        try:
            return self.session.between_steps(inside)
        finally:
            self._inside = False
            self.look()

    def _told(self, result: Any) -> list[Any]:
        """State and result of each rank, by rank."""
        assert self.state is not None  # noqa: S101 - there is a session
        mine = {
            "state": self.state.state_dict(),
            "result": portable(result) if is_plain(result) else None,
        }
        world = self._runtime.membership.layout.world_size
        told: list[Any] = [mine] * world
        if not self._runtime.sandboxed:
            dist.all_gather_object(told, mine)
        return told


def tell_rank(runtime: Runtime) -> None:
    """Have functions that are for the main process do nothing in a shadow of it."""
    rank = runtime.rank
    if runtime.sandboxed and rank == 0:
        rank = 1
    fabric_rank_zero.rank_zero_only.rank = rank_zero.rank_zero_only.rank = rank
