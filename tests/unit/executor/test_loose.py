"""Parameters that an optimizer trains and no model holds are carried like those of a model."""

from __future__ import annotations

import copy

import torch
from torch import nn

from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.units import StateUnits


class Program:
    def __init__(self) -> None:
        self.model = nn.Linear(3, 3)
        self.temperature = nn.Parameter(torch.ones(()))
        self.weights = torch.ones(2, requires_grad=True)
        self.optimizer = torch.optim.AdamW(
            [{"params": self.model.parameters()}, {"params": [self.temperature, self.weights]}],
            lr=0.1,
        )
        self.state = TrainingState(models=[self.model], optimizers=[self.optimizer], others={})

    def backward(self) -> None:
        x = torch.randn(2, 3)
        self.optimizer.zero_grad()
        (self.model(x) * self.temperature).pow(2).mean().mul(self.weights.sum()).backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()


def test_they_are_part_of_what_is_handed_over() -> None:
    torch.manual_seed(1)
    owner, joiner = Program(), Program()
    for _ in range(3):
        owner.step()
    assert owner.state.digest() != joiner.state.digest()
    joiner.state.load(copy.deepcopy(owner.state.tree()))
    assert owner.state.digest() == joiner.state.digest()
    assert torch.equal(owner.temperature, joiner.temperature)
    assert torch.equal(owner.weights, joiner.weights)
    assert joiner.optimizer.state[joiner.weights]["step"] == 3


def test_they_are_followed_by_their_gradients() -> None:
    torch.manual_seed(1)
    owner, joiner = Program(), Program()
    owner.step()
    from_units, to_units = StateUnits(owner.state), StateUnits(joiner.state)
    assert from_units.obstacle() == ""
    assert from_units.names == ("0:weight", "0:bias", "1:0", "1:1")
    for name in from_units.names:
        to_units.load(name, copy.deepcopy(from_units.tree(name)))
    owner.backward()
    to_units.step(0, from_units.gradients(0, from_units.names))
    owner.optimizer.step()
    assert owner.state.digest() == joiner.state.digest()
    assert from_units.outline()["groups"] == [["0:weight", "0:bias"], ["1:0", "1:1"]]


def test_an_aborted_step_takes_them_back() -> None:
    program = Program()
    start = StepStart(program.state)
    before = program.state.digest()
    start.capture(0, whole=True)
    program.step()
    assert program.state.digest() != before
    start.restore()
    assert program.state.digest() == before


def test_a_state_without_them_has_no_more_modules_than_it_was_given() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    assert TrainingState(models=[model], optimizers=[optimizer], others={}).models == (model,)
