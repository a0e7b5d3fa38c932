"""Iterators over loaders that a program begins by itself: told, gone to, and put back."""

from __future__ import annotations

import itertools
import random
import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainmover.errors import ProtocolError
from trainmover_executor.feed.beside.drawer import Drawers
from trainmover_executor.feed.beside.passes import Pass, carry_passes
from trainmover_executor.feed.feed import Feed
from trainmover_executor.program.holders import names
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


@pytest.fixture(autouse=True)
def drawers(monkeypatch):
    monkeypatch.setattr(names, "program_frames", lambda frame: [frame])  # not those of pytest
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    drawers = Drawers()
    carry_passes(drawers)
    drawers.in_body = True
    return drawers


def loader_of(length=10):
    return DataLoader(TensorDataset(torch.arange(length)), batch_size=2, shuffle=True)


def of_one_rank(length=12):
    data = TensorDataset(torch.arange(length))
    return DataLoader(
        data, batch_size=2, sampler=DistributedSampler(data, num_replicas=2, rank=1, seed=4)
    )


class Again:
    """An iterator that the program begins anew when it ends."""

    def __init__(self, begin):
        self.begin = begin
        self.passes = 0
        self.iterator = begin()

    def __next__(self):
        try:
            return next(self.iterator)
        except StopIteration:
            self.passes += 1
            self.iterator = self.begin()
            return next(self.iterator)


def again():
    loader = loader_of()
    return Again(lambda: iter(loader))


def pairs():
    one, other = loader_of(), of_one_rank()
    return Again(lambda: zip(one, other, strict=False))


def mapped():
    loader = loader_of()
    return Again(lambda: map(doubled, loader))


def filtered():
    loader = loader_of(40)
    return Again(lambda: filter(is_odd, map(doubled, loader)))


def doubled(batch):
    return 2 * batch[0] + 1


def is_odd(batch):
    return bool(batch.sum() % 4)


def endless():
    def batches(loader):
        epoch = 0
        while True:
            loader.sampler.set_epoch(epoch)
            for batch in loader:
                yield batch, epoch
            epoch += 1

    return batches(of_one_rank())


def delegating():
    def batches(loader):
        while True:
            yield from loader

    def halves(loader):
        for (batch,) in batches(loader):
            yield batch / 2

    return halves(loader_of())


def with_a_generator():
    def batches(loader):
        while True:
            for (batch,) in loader:
                yield batch

    own = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.arange(10))
    return batches(DataLoader(data, batch_size=2, shuffle=True, generator=own))


def again_with_a_generator():
    own = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=2, shuffle=True, generator=own)
    return Again(lambda: iter(loader))


class Shuffled:
    """A sampler that counts its passes, and draws as it goes."""

    def __init__(self, length):
        self.length, self.passes, self.rng = length, 0, random.Random(5)

    def __len__(self):
        return self.length

    def __iter__(self):
        self.passes += 1
        left = [*range(self.length)]
        while left:
            at = self.rng.randrange(len(left))
            yield left.pop(at) + 100 * self.passes


class Anything(Dataset):
    def __init__(self):
        self.rng = random.Random(6)

    def __getitem__(self, index):
        return torch.tensor([index, self.rng.randrange(1000)])


def with_a_sampler():
    def batches(loader):
        while True:
            yield from loader

    return batches(DataLoader(Anything(), batch_size=2, sampler=Shuffled(10)))


def again_with_a_sampler():
    loader = DataLoader(Anything(), batch_size=2, sampler=Shuffled(10))
    return Again(lambda: iter(loader))


def of_expressions():
    long = loader_of(400)
    return (2 * batch + 1 for (batch,) in long)


def numbered():
    def batches(loader):
        while True:
            yield from zip(range(100), loader, strict=False)

    return batches(of_one_rank())


def in_epochs():
    def batches(loader, *, epochs):
        for epoch in epochs:
            loader.sampler.set_epoch(epoch)
            yield from loader

    return batches(of_one_rank(), epochs=range(100))


def in_counted_epochs():
    def batches(loader):
        for epoch in itertools.count():
            loader.sampler.set_epoch(epoch)
            yield from loader

    return batches(of_one_rank())


def of_no_loader():
    def rates(base):
        at = 0
        while True:
            at += 1
            yield base / at

    return rates(8.0)


ENDLESS = [
    again,
    pairs,
    mapped,
    filtered,
    endless,
    delegating,
    with_a_generator,
    again_with_a_generator,
    with_a_sampler,
    again_with_a_sampler,
    numbered,
    of_expressions,
    of_no_loader,
]
ALL = [*ENDLESS, in_epochs, in_counted_epochs]


def numbers(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [*map(numbers, value)] if isinstance(value, list | tuple) else value


def draw(source, count):
    return [numbers(next(source)) for _ in range(count)]


def elsewhere(tree):
    return unpack_tree(pack_tree(tree))


def program(make, *, seed=1, drawn, take=None):
    """A process that draws, tells or takes over where it stands, and draws on.

    Returns:
        Where it stood, for another one, and what it drew from there.
    """
    torch.manual_seed(seed)
    variables = LoopVariables([])
    source = make()
    variables.changed(sys._getframe())
    draw(source, drawn)
    told, rng = elsewhere(variables.changed(sys._getframe())), torch.get_rng_state()
    if take is not None:
        tree, rng = take
        assert variables.load(tree, sys._getframe()) == []
        torch.set_rng_state(rng)
    return (told, rng), draw(source, 12)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("drawn", [1, 5])
def test_another_process_goes_on_from_there(make, drawn):
    there, expected = program(make, drawn=drawn)
    assert program(make, seed=2, drawn=1, take=there)[1] == expected


@pytest.mark.parametrize("make", ALL)
def test_one_that_was_not_begun_is_begun(make):
    there, expected = program(make, drawn=4)
    assert program(make, seed=2, drawn=0, take=there)[1] == expected


@pytest.mark.parametrize("make", ENDLESS)
def test_one_that_has_drawn_more_goes_back(make):
    there, expected = program(make, drawn=1)
    assert program(make, seed=2, drawn=8, take=there)[1] == expected


def disturbed(make, drawers, *, drawn, counts, again):
    """A process whose bodies draw ``counts`` batches, and are done again ``again`` times."""
    torch.manual_seed(1)
    variables = LoopVariables([])
    source = make()
    variables.changed(sys._getframe())
    seen = draw(source, drawn)
    for count in counts:
        drawers.forget()
        variables.keep(sys._getframe())
        rng = torch.get_rng_state()
        for _ in range(again):
            draw(source, count)
            drawers.put_back()
            variables.put_back(sys._getframe())
            torch.set_rng_state(rng)
        seen += draw(source, count)
    return seen


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("drawn", [0, 4, 5])
@pytest.mark.parametrize("counts", [(1, 2, 3), (6, 2)])
def test_bodies_that_are_done_again_draw_the_same(make, drawn, counts, drawers):
    expected = disturbed(make, drawers, drawn=drawn, counts=counts, again=0)
    assert disturbed(make, drawers, drawn=drawn, counts=counts, again=1) == expected
    assert disturbed(make, drawers, drawn=drawn, counts=counts, again=2) == expected


def test_a_generator_at_another_yield_is_said():
    def source():
        yield from range(20)
        yield 20
        yield 21

    there, _ = program(source, drawn=1)
    with pytest.raises(ProtocolError, match="stands at another 'yield'"):
        program(source, drawn=21, take=there)


class TestWhoGetsOne:
    def test_iter_and_generators_do(self):
        loader = loader_of()
        assert type(iter(loader)) is Pass
        assert len(iter(loader)) == len(loader)
        assert type(next(each for each in [iter(loader)])) is Pass
        assert type((batch for batch in loader).gi_frame.f_locals[".0"]) is Pass

    def test_loops_do_not(self, drawers):
        loader = loader_of()
        for _ in loader:
            pass
        for _, _ in enumerate(loader):
            pass
        assert len([batch for batch in loader]) == 5  # noqa: C416 - a loop
        assert len(list(loader)) == 5
        assert len(drawers._all) == 0

    def test_other_threads_do_not(self):
        loader, got = loader_of(), []
        thread = threading.Thread(target=lambda: got.append(iter(loader)))
        thread.start()
        thread.join()
        assert isinstance(got[0], _BaseDataLoaderIter)

    def test_a_loader_of_the_programs_own_does_not_while_the_loop_reads_it(self, drawers):
        class Halves:
            def __iter__(self):
                for (batch,) in loader:
                    yield batch / 2

        loader = loader_of()
        feed = Feed(Halves())
        assert [feed.draw()[0] for _ in range(6)] == [True] * 5 + [False]
        assert len(drawers._all) == 0

    def test_one_that_the_loop_draws_from_is_left_to_it(self):
        class Prefetcher:
            def __init__(self):
                self.batches = iter(loader)

            def __iter__(self):
                return self

            def __next__(self):
                return next(self.batches)

        loader = loader_of()
        prefetcher = Prefetcher()
        feed = Feed(prefetcher)
        feed.draw()
        told = portable(prefetcher.batches)
        second = feed.position()
        feed.draw()
        assert restored(told, prefetcher.batches) is prefetcher.batches
        assert feed.position() != second
        assert told["state"] is None

    def test_batches_are_kept_in_bodies_only(self, drawers):
        loader = loader_of()
        batches = iter(loader)
        next(batches)
        assert len(batches._drawn) == 1
        drawers.in_body = False
        next(batches)
        assert len(batches._drawn) == 1


class Over:
    """A sampler that goes over another one again and again."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class OneIterator(DataLoader):
    """A loader whose workers live as long as it does: all epochs are drawn from one iterator."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Over(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Augmented(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index + torch.rand(())


def one_iterator(workers):
    torch.manual_seed(1)
    sampler = DistributedSampler(Augmented(), num_replicas=1, rank=0)
    return OneIterator(Augmented(), batch_size=4, sampler=sampler, num_workers=workers)


@pytest.fixture
def loaders():
    """Ends their workers: the garbage collector takes ten seconds for each."""
    loaders = []
    yield loaders
    for each in loaders:
        each.iterator._feed.rewind()


def epochs_of(loader, *, first=0, feed=None):
    """(feed, batch) of four epochs, from where ``feed`` is in epoch number ``first``."""
    for epoch in range(first, 4):
        loader.batch_sampler.sampler.sampler.set_epoch(epoch)
        feed = feed if feed is not None and epoch == first else Feed(loader)
        while (drawn := feed.draw())[0]:
            yield epoch, feed, numbers(drawn[1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drawn", [2, 5, 6, 8, 13])
def test_a_loader_with_one_iterator_for_all_epochs(workers, drawn, loaders):
    loaders += [one_iterator(workers), one_iterator(workers)]
    torch.manual_seed(1)
    ours, loader = loaders
    job = epochs_of(ours)
    *_, (epoch, feed, _) = itertools.islice(job, drawn)
    place, rng = elsewhere(feed.position()), torch.get_rng_state()
    expected = [batch for _, _, batch in job]
    torch.manual_seed(2)
    shadow = Feed(loader)
    for _ in range(3):
        shadow.draw()
    joiner = Feed(loader)
    joiner.seek(place)
    torch.set_rng_state(rng)
    rest = [batch for _, _, batch in epochs_of(loader, first=epoch, feed=joiner)]
    assert rest == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seen", [1, 2, 4, 6, 7, 8])
def test_a_standby_that_follows_it_reads_each_epoch_in_the_order_it_had(workers, seen, loaders):
    loaders += [one_iterator(workers), one_iterator(workers)]
    ours, loader = loaders
    torch.manual_seed(1)
    job = epochs_of(ours)
    *_, (epoch, feed, _) = itertools.islice(job, seen)
    standby = Feed(loader)
    standby.draw()
    loader.batch_sampler.sampler.sampler.set_epoch(epoch)  # its program comes there by itself
    assert standby.approach(elsewhere(feed.position()), budget_s=60.0)
    *_, (epoch, feed, _) = itertools.islice(job, 10 - seen)
    place, rng = elsewhere(feed.position()), torch.get_rng_state()
    expected = [batch for _, _, batch in job]
    loader.batch_sampler.sampler.sampler.set_epoch(epoch)
    joiner = Feed(loader)
    joiner.seek(place)
    torch.set_rng_state(rng)
    assert [batch for _, _, batch in epochs_of(loader, first=epoch, feed=joiner)] == expected


def test_a_pass_tells_what_the_program_has_changed_before_it_is_read(loaders):
    loaders += [one_iterator(0), one_iterator(0)]
    ours, loader = loaders
    for each in loaders:
        for _ in range(6):
            next(each.iterator)
    ours.batch_sampler.sampler.sampler.set_epoch(3)
    loader.iterator.seek(elsewhere(ours.iterator.position()))
    assert loader.batch_sampler.sampler.sampler.epoch == 3
    assert elsewhere(loader.iterator.position()) == elsewhere(ours.iterator.position())
    rng = torch.get_rng_state()
    following = numbers(next(ours.iterator))
    torch.set_rng_state(rng)
    assert numbers(next(loader.iterator)) == following


def test_workers_draw_alike_where_nothing_but_torch_was_seeded(loaders):
    def first(seed):
        loader = one_iterator(1)
        loaders.append(loader)
        random.seed(seed)
        return numbers(next(iter(loader)))

    assert first(1) == first(2)
