"""Batches of one more loader: a place in them that is told, gone to, and put back."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from trainmover.errors import ConfigError
from trainmover_executor.feed.beside.cycle import Cycle
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Stream(IterableDataset):
    drawn = 0

    def __iter__(self):
        for index in range(5):
            self.drawn += 1
            yield index + torch.rand(())


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


def shuffled():
    return DataLoader(TensorDataset(torch.arange(10)), batch_size=3, shuffle=True)


def of_one_rank():
    data = TensorDataset(torch.arange(12))
    sampler = DistributedSampler(data, num_replicas=2, rank=1, seed=4)
    return DataLoader(data, batch_size=2, sampler=sampler)


def streamed():
    return DataLoader(Stream(), batch_size=2)


LOADERS = [shuffled, of_one_rank, streamed, lambda: [torch.full((2,), float(k)) for k in range(3)]]


def numbers(batch):
    return (batch[0] if isinstance(batch, list | tuple) else batch).tolist()


def drawn(cycle, count):
    return [numbers(next(cycle)) for _ in range(count)]


@pytest.mark.parametrize("make", LOADERS)
class TestPlaces:
    def test_an_aborted_body_draws_the_same_again(self, make):
        torch.manual_seed(1)
        cycle = Cycle(make())
        drawn(cycle, 2)
        for _ in range(4):
            cycle.forget()
            place, rng = cycle.position(), torch.get_rng_state()
            first, then = drawn(cycle, 3), torch.get_rng_state()
            cycle.seek(place)
            torch.set_rng_state(rng)
            assert drawn(cycle, 3) == first
            assert torch.equal(torch.get_rng_state(), then)

    def test_one_that_draws_fewer_when_it_is_done_again_leaves_the_rest(self, make):
        torch.manual_seed(1)
        cycle = Cycle(make())
        place, rng = cycle.position(), torch.get_rng_state()
        first = drawn(cycle, 4)
        cycle.seek(place)
        torch.set_rng_state(rng)
        assert drawn(cycle, 1) == first[:1]
        cycle.forget()
        assert drawn(cycle, 3) == first[1:]

    def test_another_process_goes_on_from_a_place(self, make):
        torch.manual_seed(1)
        ours = Cycle(make())
        drawn(ours, 9)
        place = unpack_tree(pack_tree(ours.position()))
        rng = torch.get_rng_state()
        expected = drawn(ours, 9)
        torch.manual_seed(2)
        theirs = Cycle(make(), replay=3)
        drawn(theirs, 3)
        theirs.seek(place)
        torch.set_rng_state(rng)
        assert drawn(theirs, 9) == expected


def test_seeking_leaves_the_process_wide_generators_alone():
    torch.manual_seed(1)
    ours, theirs = Cycle(shuffled()), Cycle(shuffled())
    drawn(ours, 6)
    before = torch.get_rng_state()
    theirs.seek(ours.position())
    assert torch.equal(torch.get_rng_state(), before)


def test_what_was_drawn_since_a_step_began_is_not_loaded_again():
    loader = streamed()
    cycle = Cycle(loader)
    drawn(cycle, 1)
    place = cycle.position()
    drawn(cycle, 1)
    loaded = loader.dataset.drawn
    cycle.seek(place)
    drawn(cycle, 1)
    assert loader.dataset.drawn == loaded


def test_each_pass_has_its_epoch():
    cycle = Cycle(of_one_rank())
    first, second = drawn(cycle, 3), drawn(cycle, 3)
    assert first != second


def test_a_loader_without_batches_is_said():
    with pytest.raises(ConfigError, match="gave no batch in a whole pass"):
        next(Cycle(DataLoader(Nothing())))


def test_a_variable_that_holds_one_is_put_back_and_carried():
    def program(steps, take=None):
        variables = LoopVariables([])
        held = {"of": [Cycle(of_one_rank())]}
        seen = []
        for _ in range(steps):
            variables.changed(sys._getframe())
            seen.append(numbers(next(held["of"][0])))
        if take is not None:
            assert variables.load(take, sys._getframe()) == []
        variables.keep(sys._getframe())
        more = drawn(held["of"][0], 2)
        variables.put_back(sys._getframe())
        return variables.changed(sys._getframe()), more, drawn(held["of"][0], 2)

    tree, more, again = program(7)
    assert more == again
    _, theirs, theirs_again = program(1, unpack_tree(pack_tree(tree)))
    assert theirs == theirs_again == more
