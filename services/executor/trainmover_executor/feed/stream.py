"""Process-wide random numbers of the data, apart from those of training.

Loading in the training process and training draw from the same process-wide generators in turn.
Whoever loads without training would see other numbers. So code that may draw from them while it
makes batches runs in a stream: the generators are its own while it runs, and training's afterwards.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from trainmover_executor.feed.seeds import mix

__all__ = ["Stream"]

_Result = TypeVar("_Result")


class Stream:
    """A state of its own for the process-wide generators of Python, numpy and torch (CPU).

    Args:
        seeds: Of Python, numpy and torch, in this order.
        advance: Whether the first use moves the process-wide generators on by one number, so that
            the next stream is another one. Only those are moved that were used.

    Attributes:
        seeds: As given.
    """

    def __init__(self, seeds: list[int], *, advance: bool) -> None:
        self.seeds = seeds
        self._first = advance
        self._python = random.Random(seeds[0]).getstate()  # noqa: S311 - for data
        self._numpy = np.random.MT19937(seeds[1])
        self._gauss: float | None = None
        self._torch = torch.Generator().manual_seed(seeds[2]).get_state()

    @classmethod
    def of_now(cls) -> Stream:
        """A new one; each of its seeds is made of the state of the generator it stands for.

        Ranks that have seeded one of them alike, say to shuffle alike, stay alike in it.
        """
        twister = np.random.get_state(legacy=False)
        own = torch.get_rng_state().numpy().tobytes()
        seeds = [
            mix(repr(random.getstate())),
            mix(twister["state"]["key"].tobytes(), twister["state"]["pos"]),
            mix(own),
        ]
        return cls(seeds, advance=True)

    def run(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """What ``work(*arguments)`` returns, with the generators of the stream."""
        python, torchs = random.getstate(), torch.get_rng_state()
        numpys, gauss = np.random.get_bit_generator(), _gauss_left()  # type: ignore[attr-defined]
        before = self._python, self._torch, self._numpy.state if self._first else None
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        _use(self._numpy, self._gauss)
        try:
            return work(*arguments)
        finally:
            self._python, self._torch = random.getstate(), torch.get_rng_state()
            self._gauss = _gauss_left()
            random.setstate(python)
            torch.set_rng_state(torchs)
            _use(numpys, gauss)
            if self._first:
                self._first = False
                self._move_on(*before)

    def differs(self, seeds: list[int]) -> bool:
        """Whether a stream with ``seeds`` would have given other numbers than this one has."""
        other = Stream(seeds, advance=False)
        begun = Stream(self.seeds, advance=False)
        used = [one != two for one, two in zip(begun._states(), self._states(), strict=True)]
        unlike = [one != two for one, two in zip(begun._states(), other._states(), strict=True)]
        return any(map(operator.and_, used, unlike))

    def _states(self) -> tuple[str, str, str]:
        return (str(self._python), str(self._numpy.state), str(self._torch.tolist()))

    def _move_on(self, python: Any, torchs: torch.Tensor, numpys: Any) -> None:
        if python != self._python:
            random.random()  # noqa: S311 - the next number is what training would have drawn
        if not torch.equal(torchs, self._torch):
            torch.empty((), dtype=torch.int64).random_()
        if repr(numpys) != repr(self._numpy.state):
            np.random.random()


def _gauss_left() -> float | None:
    """The second of two normal numbers, which numpy makes at once; None where there is none."""
    state = np.random.get_state(legacy=False)
    return float(state["gauss"]) if state["has_gauss"] else None


def _use(generator: Any, gauss: float | None) -> None:
    """Have numpy draw from ``generator``; it forgets that second number by itself."""
    np.random.set_bit_generator(generator)  # type: ignore[attr-defined]
    if gauss is not None:
        state = np.random.get_state(legacy=False)
        np.random.set_state({**state, "has_gauss": 1, "gauss": gauss})
