"""Variables are put back into the objects that held them."""

from __future__ import annotations

import sys

import torch

from trainmover_executor.program.variables import LoopVariables


def test_the_batch_of_a_step_is_not_overwritten_with_that_of_the_step_before():
    variables = LoopVariables([])
    frame = sys._getframe()
    batch = torch.zeros(3)
    variables.keep(frame)
    earlier, batch = batch, torch.ones(3)
    now = batch
    variables.put_back(frame)
    assert now.tolist() == [1, 1, 1]
    assert batch is earlier


def test_a_list_that_grew_is_put_back_in_place():
    variables = LoopVariables([])
    frame = sys._getframe()
    seen = [1]
    same = seen
    variables.keep(frame)
    seen.append(2)
    variables.put_back(frame)
    assert seen is same
    assert same == [1]
