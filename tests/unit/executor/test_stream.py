"""Random numbers of the data, apart from those of training."""

from __future__ import annotations

import random

import numpy as np
import torch

from trainmover_executor.feed.stream import Stream


def _numbers() -> tuple[float, ...]:
    return (random.random(), np.random.randn(), float(torch.rand(())), random.gauss(0.0, 1.0))


def test_training_draws_what_it_would_have_drawn_without_the_data() -> None:
    np.random.seed(3)
    torch.manual_seed(3)
    random.seed(3)
    expected = [_numbers() for _ in range(8)]
    np.random.seed(3)
    torch.manual_seed(3)
    random.seed(3)
    stream = Stream([1, 2, 3], advance=False)
    found = []
    for _ in range(8):
        found.append(_numbers())
        stream.run(_numbers)
    assert found == expected


def test_it_gives_the_same_numbers_in_pieces_as_at_once() -> None:
    at_once = Stream([1, 2, 3], advance=False).run(lambda: [_numbers() for _ in range(8)])
    pieces = Stream([1, 2, 3], advance=False)
    assert [pieces.run(_numbers) for _ in range(8)] == at_once
