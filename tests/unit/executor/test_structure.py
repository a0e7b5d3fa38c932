"""What a program changes about its models and optimizers besides tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainmover.errors import ConfigError
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree
from trainmover_executor.state.training import TrainingState


class Program:
    """A head that is trained, and a backbone that is frozen at first."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.model[0].requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model[1].parameters(), 0.1)
        self.state = TrainingState(models=[self.model], optimizers=[self.optimizer], others={})

    def thaw(self) -> None:
        self.model[0].requires_grad_(True)
        self.optimizer.add_param_group({"params": list(self.model[0].parameters()), "lr": 0.01})
        self.model[1].eval()
        self.model[2].p = 0.25


def test_a_joiner_becomes_like_a_program_that_thawed_its_backbone() -> None:
    leaver, joiner = Program(), Program()
    leaver.thaw()
    joiner.state.structure.load(unpack_tree(pack_tree(leaver.state.structure.tree())))
    joiner.state.load(leaver.state.tree())
    first, second = joiner.optimizer.param_groups
    assert [id(one) for one in second["params"]] == [id(p) for p in joiner.model[0].parameters()]
    assert (first["lr"], second["lr"]) == (0.1, 0.01)
    assert all(parameter.requires_grad for parameter in joiner.model.parameters())
    assert [module.training for module in joiner.model] == [True, False, True]
    assert joiner.model[2].p == 0.25


@pytest.mark.parametrize("shapes", [True, False])
def test_a_parameter_of_another_shape_takes_the_place_of_the_joiners(shapes: bool) -> None:
    leaver, joiner = Program(), Program()
    norm, old = leaver.model[1], joiner.model[1].weight
    norm.weight = nn.Parameter(torch.arange(5.0))
    leaver.optimizer.param_groups[0]["params"][0] = norm.weight
    joiner.state.structure.load(unpack_tree(pack_tree(leaver.state.structure.tree(shapes=shapes))))
    joiner.state.load(leaver.state.tree())
    new = joiner.model[1].weight
    assert torch.equal(new, norm.weight)
    assert new is not old
    assert joiner.optimizer.param_groups[0]["params"][0] is new


def test_a_group_that_went_goes() -> None:
    leaver, joiner = Program(), Program()
    joiner.thaw()
    joiner.state.structure.load(leaver.state.structure.tree())
    assert len(joiner.optimizer.param_groups) == 1
    assert not joiner.model[0].weight.requires_grad


def test_what_never_changed_is_the_joiners_own() -> None:
    leaver, joiner = Program(), Program()
    joiner.model[2].p = 0.1
    joiner.state.structure.load(leaver.state.structure.tree())
    assert joiner.model[2].p == 0.1


def test_groups_that_cannot_be_made_alike_are_said() -> None:
    leaver, joiner = Program(), Program()
    leaver.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    with pytest.raises(ConfigError, match="parameter group 1 of SGD is another one"):
        joiner.state.structure.load(leaver.state.structure.tree())
