"""Other weights that plain code puts in between two steps."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from trainmover_executor.checks.swaps import Swaps
from trainmover_executor.state.training import TrainingState


class Program:
    """Steps, and an evaluation behind each that communicates."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 4)
        self.swaps = Swaps(TrainingState(models=[self.model], optimizers=[], others={}))

    def steps(self) -> None:
        with torch.no_grad():
            self.model.weight += 1
        self.swaps.body_ended()

    def write(self, value: torch.Tensor) -> torch.Tensor:
        before = self.model.weight.detach().clone()
        self.model.weight.data.copy_(value)
        return before

    def evaluates(self, *, puts_back: bool = True) -> str:
        stored = self.write(torch.zeros(4, 4))
        self.swaps.communicates(sys._getframe())
        there = self.swaps.others_are_in
        if puts_back:
            self.write(stored)
        self.swaps.asks()
        return there


def test_the_second_evaluation_is_known(capsys: Any) -> None:
    program = Program()
    program.steps()
    assert program.evaluates() == ""
    program.steps()
    assert "test_swaps.py" in program.evaluates()
    said = capsys.readouterr().out
    assert said.count("other weights are put in") == 1
    assert "session.between_steps" in said


def test_what_stays_as_it_was_written_is_no_swap(capsys: Any) -> None:
    program = Program()
    for _ in range(3):
        program.steps()
        assert program.evaluates(puts_back=False) == ""
    assert "other weights" not in capsys.readouterr().out


def test_who_communicates_behind_it_communicates_with_the_trained_weights() -> None:
    program = Program()
    for _ in range(2):
        program.steps()
        program.evaluates()
    program.steps()
    program.swaps.communicates(sys._getframe())
    assert program.swaps.others_are_in == ""


def test_who_writes_what_was_there_puts_no_other_weights_in(capsys: Any) -> None:
    """A program may load its own weights, or broadcast them, before it communicates."""
    program = Program()
    for _ in range(3):
        program.steps()
        program.model.load_state_dict(program.model.state_dict())
        program.swaps.communicates(sys._getframe())
        assert program.swaps.others_are_in == ""
        program.swaps.asks()
    assert "other weights" not in capsys.readouterr().out
