"""Dictionaries by module, by parameter, or by ``id`` of one: each process has other keys."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from trainmover_executor.program.holders import names
from trainmover_executor.program.values.kinds.components import key_of, key_text, name_components
from trainmover_executor.program.values.plain import is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

LARGE = 96  # its square is more than a small tensor may have


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def named(net: nn.Module) -> nn.Module:
    """As when a session of this process was given ``net``."""
    name_components([("model[0]", net)])
    return net


KEYS = {
    "modules": lambda net: list(net.children()),
    "parameters": lambda net: list(net.parameters()),
    "ids": lambda net: [id(each) for each in net.parameters()],
    "tuples": lambda net: [(each, "mean") for each in net.children()],
}


@pytest.mark.parametrize("kind", KEYS)
def test_another_process_has_the_values_by_its_own_keys(kind: str) -> None:
    ours, theirs = model(), model()
    told = {key: [at, torch.ones(at)] for at, key in enumerate(KEYS[kind](named(ours)))}
    assert is_plain(told)
    tree = unpack_tree(pack_tree(portable(told)))
    keys = KEYS[kind](named(theirs))
    taken = restored(tree, live := {keys[0]: 7, "gone": 1})
    assert taken is live
    assert [one is other or one == other for one, other in zip(taken, keys, strict=True)]
    assert [(at, len(ones)) for at, ones in taken.values()] == [(at, at) for at in range(len(keys))]


def test_two_layers_that_look_alike_have_two_names() -> None:
    one, other = named(model()).children()
    assert repr(one) == repr(other)
    assert key_text(one) != key_text(other)
    assert key_of(key_text(one)) is one


def test_what_is_of_no_model_is_no_key_of_a_plain_value() -> None:
    named(model())
    assert not is_plain({nn.Linear(2, 2): 1})
    assert not is_plain({nn.Parameter(torch.ones(3)): 1})
    assert key_text(torch.ones(3)).startswith("<Tensor at ")


def test_a_name_that_is_missing_here_is_an_error() -> None:
    tree = portable({named(model())[1]: 1})
    named(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"have nothing that is named 'model\[0\]\.1'"):
        restored(tree, {})


class Statistics:
    """Factors by module, large ones, which it makes when a module first runs."""

    def __init__(self) -> None:
        self.factors = {}

    def update(self, net: nn.Module, value: float) -> None:
        for module in net.children():
            self.factors[module] = torch.full((LARGE, LARGE), value)


def test_large_factors_come_to_a_joiner_that_has_none_yet(monkeypatch) -> None:
    monkeypatch.setattr(names, "program_frames", lambda frame: [frame])  # not those of pytest
    net, statistics = model(), Statistics()

    def look(variables: LoopVariables):
        return variables.changed(sys._getframe(1), asks=True)

    ours = LoopVariables([], models=[net])
    look(ours)
    statistics.update(net, 3.0)
    told = unpack_tree(pack_tree(look(ours)))
    assert len(statistics.factors) == len(net)

    net, statistics = model(), Statistics()
    joiner = LoopVariables([], models=[net])
    look(joiner)
    assert joiner.load(told, sys._getframe(), contents=ours.contents) == []
    assert [module is key for module, key in zip(net, statistics.factors, strict=True)] == [
        True
    ] * len(net)
    assert all(bool((each == 3.0).all()) for each in statistics.factors.values())
