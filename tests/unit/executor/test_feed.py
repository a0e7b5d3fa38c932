"""Places in the data: another process that goes to one sees what the first one would have seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import structlog
import torch
from tests.support.loaders import (
    BATCH,
    DRAWN,
    MAP_STYLE,
    SEQUENCES,
    SIZE,
    STATEFUL,
    Again,
    Counting,
    Numbers,
    Trace,
    go,
    seed_all,
    train,
)
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    TensorDataset,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from trainmover.errors import ConfigError
from trainmover_executor.feed import Feed
from trainmover_executor.feed.sources.source import DataEndedError
from trainmover_executor.feed.stream import Stream
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree
from trainmover_executor.state.rng import capture_rng

ALL = {**MAP_STYLE, **DRAWN, **STATEFUL, **SEQUENCES}
EPOCHS = 3
MOST = 26  # of endless ones


def beginning() -> None:
    seed_all(1)


@cache  # three tests go on from it
def undisturbed(name: str) -> Trace:
    beginning()
    return train(Feed(ALL[name](), epochs=EPOCHS), most=MOST)


def standby(make: Any, *, epochs: int | None = EPOCHS) -> Feed:
    """A feed after shadow iterations, in a process whose generators are anywhere."""
    beginning()
    feed = Feed(make(), epochs=epochs, replay=3)
    train(feed, most=3)
    seed_all(99)
    return feed


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("name", ALL)
class TestSeek:
    def test_goes_on_with_the_same_bits_in_any_pass(self, name: str):
        calm = undisturbed(name)
        for at in (4, len(calm.batches) - 4):
            joiner = standby(ALL[name])
            go(joiner, calm.places[at])
            rest = train(joiner, most=MOST - at - 1)
            assert rest.batches == calm.batches[at + 1 :]
            if name not in STATEFUL:  # a state may be another one and mean the same
                assert rest.places == calm.places[at + 1 :]

    def test_prepared_in_steps_it_is_the_same(self, name: str):
        calm = undisturbed(name)
        joiner = standby(ALL[name])
        before = torch.get_rng_state()
        for at in (1, 2, 6):
            assert joiner.approach(unpack_tree(calm.places[at])["feed"], budget_s=60)
        for at in (6, 7):
            joiner.preload(unpack_tree(calm.places[at])["feed"])
        assert torch.equal(torch.get_rng_state(), before)
        go(joiner, calm.places[8])
        assert train(joiner, most=MOST - 9).batches == calm.batches[9:]

    def test_a_place_before_what_was_preloaded_is_found(self, name: str):
        calm = undisturbed(name)
        joiner = standby(ALL[name])
        joiner.preload(unpack_tree(calm.places[1])["feed"])
        go(joiner, calm.places[1])
        assert train(joiner, most=MOST - 2).batches == calm.batches[2:]

    def test_before_the_first_batch_it_begins_anew(self, name: str):
        beginning()
        feed = Feed(ALL[name](), epochs=EPOCHS)
        place = pack_tree({"feed": feed.position(), "rng": capture_rng()})
        calm = train(feed, most=4)
        joiner = standby(ALL[name])
        go(joiner, place)
        assert train(joiner, most=4).batches == calm.batches


class TestWhatIsLoaded:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_nothing_before_the_place(self, workers: int):
        def make() -> DataLoader:
            return DataLoader(Numbers(), BATCH, num_workers=workers)

        calm = train(Feed(make()), most=6)
        loader = make()
        feed = Feed(loader)
        assert feed.how == "index"
        feed.approach(unpack_tree(calm.places[2])["feed"], budget_s=60)
        assert loader.dataset.loaded.sum() == 0
        go(feed, calm.places[3])
        train(feed, most=100)
        assert loader.dataset.loaded.tolist() == [0] * 12 + [1] * (SIZE - 12)

    def test_a_preload_has_workers_load_what_follows(self):
        calm = train(Feed(DataLoader(Numbers(), BATCH, num_workers=2)), most=3)
        loader = DataLoader(Numbers(), BATCH, num_workers=2)
        feed = Feed(loader)
        feed.preload(unpack_tree(calm.places[0])["feed"])
        until = time.monotonic() + 30
        used = 3 * BATCH  # one that was drawn, and two that training draws meanwhile
        while loader.dataset.loaded[used : used + 3].sum() < 3 and time.monotonic() < until:
            time.sleep(0.01)
        feed.preload(unpack_tree(calm.places[1])["feed"])
        assert loader.dataset.loaded[: used + 3].tolist() == [0] * used + [1] * 3
        go(feed, calm.places[2])
        train(feed, most=100)
        assert loader.dataset.loaded.tolist() == [0] * used + [1] * (SIZE - used)

    def test_a_preload_ends_in_time_and_goes_on_where_it_was(self):
        class Slow:
            drawn = 0

            def __iter__(self):
                for number in range(100):
                    time.sleep(0.01)
                    self.drawn += 1
                    yield number

        leaver, loader = Feed(Slow()), Slow()
        while leaver.draw()[1] < 19:
            pass
        feed, place = Feed(loader), leaver.position()
        feed.preload(place, budget_s=0.05)
        assert 1 <= loader.drawn < 20
        while loader.drawn < 20:
            feed.preload(place, budget_s=0.05)
        feed.preload(place)
        feed.seek(place)
        assert (feed.draw(), loader.drawn) == ((True, 20), 21)

    @pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
    def test_a_state_that_is_quickly_loaded_saves_loading_the_data(self):
        class Slow(Numbers):
            def __getitem__(self, index: int) -> torch.Tensor:
                time.sleep(0.02)
                return super().__getitem__(index)

        def make() -> StatefulDataLoader:
            return StatefulDataLoader(Slow(), 1)

        calm = train(Feed(make()), most=20)
        loader = make()
        feed = Feed(loader)
        train(feed, most=3)
        for at in (3, 19):  # it is not known before the first time
            go(feed, calm.places[at])
        assert loader.dataset.loaded[:20].sum() < 6

    @pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
    def test_a_stateful_loader_far_into_the_data_is_ready_before_it_is_needed(self):
        drawn: list[int] = []

        class Shuffled(Sampler[int]):
            def __iter__(self):
                for index in torch.randperm(SIZE).tolist():
                    drawn.append(index)
                    yield index

        def make() -> StatefulDataLoader:
            return StatefulDataLoader(Numbers(), BATCH, sampler=Shuffled())

        beginning()
        calm = train(Feed(make()), most=7)
        places = [unpack_tree(place)["feed"] for place in calm.places]
        loader = make()
        feed = Feed(loader)
        train(feed, most=2)
        loader.dataset.loaded.zero_()
        assert feed.approach(places[3], budget_s=60)
        assert feed.approach(places[4], budget_s=60)
        assert loader.dataset.loaded.sum() == 0
        drawn.clear()
        go(feed, calm.places[5])
        assert len(drawn) == BATCH, "one batch on from what is prepared"
        assert train(feed, most=1).batches == calm.batches[6:7]
        assert loader.dataset.loaded.sum() == BATCH
        assert loader.state_dict()["_sampler_iter_yielded"] == 7

    @pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_stateful_loader_leaves_out_what_its_state_has_drawn_at_once(
        self, workers: int, monkeypatch
    ):
        size, run, runs = 4_000, Stream.run, []
        monkeypatch.setattr(Stream, "run", lambda *args: (runs.append(1), run(*args))[1])

        def make() -> StatefulDataLoader:
            sampler = DistributedSampler(range(size), num_replicas=1, rank=0)
            return StatefulDataLoader(torch.arange(size), 2, sampler=sampler, num_workers=workers)

        drawing = iter(own := make())
        for _ in range(size // 2 - 8):
            next(drawing)
        loader = make()
        loader.load_state_dict(own.state_dict())
        feed = Feed(loader)
        want = [each.tolist() for each in drawing]
        assert feed.draw()[1].tolist() == want[0]
        position = feed.position()
        other = Feed(make())
        other.seek(unpack_tree(pack_tree(position)))
        assert other.draw()[1].tolist() == feed.draw()[1].tolist() == want[1]
        assert len(runs) < 200

    @pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
    @pytest.mark.parametrize("at", [1, 5, 8])
    @pytest.mark.parametrize("workers", [0, 1])
    def test_the_state_of_a_stateful_loader_means_the_same_without_us(self, workers: int, at: int):
        def make() -> StatefulDataLoader:
            sampler = DistributedSampler(range(SIZE), num_replicas=1, rank=0)
            return StatefulDataLoader(
                torch.arange(SIZE), BATCH, sampler=sampler, num_workers=workers
            )

        loader, plain = make(), make()
        want = [each.tolist() for each in make()]
        feed = Feed(loader)
        for _ in range(at):
            feed.draw()
        plain.load_state_dict(loader.state_dict())
        assert [each.tolist() for each in plain] == want[at:]

    @pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_state_behind_the_last_batch_begins_the_next_pass(self, workers: int):
        def make() -> StatefulDataLoader:
            return StatefulDataLoader(
                torch.arange(SIZE), BATCH, sampler=Counting(), num_workers=workers
            )

        used, loader = make(), make()
        list(used)
        loader.load_state_dict(used.state_dict())
        feed = Feed(loader)
        first = feed.draw()[1].tolist()
        position = unpack_tree(pack_tree(feed.position()))
        rest = [feed.draw()[1].tolist() for _ in range(2)]
        other = Feed(make())
        other.seek(position)
        assert [other.draw()[1].tolist() for _ in range(2)] == rest
        assert first not in rest

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_loader_of_the_programs_own_that_has_a_state_is_resumed_by_it(self, workers: int):
        class Resumes(DataLoader):
            at = 0

            def __iter__(self):
                for number, batch in enumerate(super().__iter__()):
                    if number >= self.at:
                        self.at += 1
                        yield batch
                self.at = 0

            def state_dict(self):
                return {"at": self.at}

            def load_state_dict(self, state):
                self.at = state["at"]

        def make() -> Feed:
            return Feed(Resumes(torch.arange(SIZE), BATCH, num_workers=workers))

        feed, other = make(), make()
        beginning = unpack_tree(pack_tree(feed.position()))
        for _ in range(3):
            feed.draw()
        other.draw()
        other.seek(beginning)
        assert other.draw()[1].tolist() == [0, 1, 2]
        other.seek(unpack_tree(pack_tree(feed.position())))
        assert torch.equal(other.draw()[1], feed.draw()[1])
        assert other.draw()[1].tolist() == [12, 13, 14]

    def test_far_into_the_data_it_is_quick(self):
        size = 4_000_000
        dataset = torch.arange(size)
        feed = Feed(DataLoader(dataset, 16, shuffle=True))
        feed.skip(200_000)
        position = pack_tree(feed.position())
        want = feed.draw()[1]
        other = Feed(DataLoader(dataset, 16, shuffle=True))
        other.approach(unpack_tree(position), budget_s=60)
        started = time.process_time()
        other.seek(unpack_tree(position))
        assert time.process_time() - started < 2  # to draw them all takes a minute
        assert torch.equal(other.draw()[1], want)


class TestSkip:
    @pytest.mark.parametrize(
        "name", ["in order", "distributed", "generator", "persistent, generator", "custom", "list"]
    )
    @pytest.mark.parametrize("batches", [0, 3, 8, 12])
    def test_across_passes_it_comes_to_where_drawing_comes_to(self, name: str, batches: int):
        def bare() -> Any:
            loader = ALL[name]()
            if isinstance(loader, DataLoader):
                vars(loader)["dataset"] = torch.arange(SIZE)  # loading draws no numbers
            return loader

        beginning()
        feed = Feed(bare(), epochs=EPOCHS)
        for _ in range(batches):
            feed.draw()
        beginning()
        other = Feed(bare(), epochs=EPOCHS)
        other.skip(batches)
        ones, others = train(feed, most=10), train(other, most=10)
        assert [batch[:2] for batch in ones.batches] == [batch[:2] for batch in others.batches]

    def test_what_cannot_be_numbered_is_drawn(self):
        feed = Feed(Again(), epochs=2)
        feed.skip(11)
        assert feed.epoch == 1
        assert feed.cost_s > 0
        assert len(train(feed, most=100).batches) == 7

    def test_a_place_can_be_taken_at_once(self):
        feed, other = (Feed(DataLoader(torch.arange(SIZE), BATCH)) for _ in range(2))
        feed.skip(4)
        other.seek(feed.position())
        assert feed.draw()[1].tolist() == other.draw()[1].tolist() == [12, 13, 14]


class TestEpochs:
    def test_a_program_that_sets_the_epoch_is_left_alone(self):
        dataset = torch.arange(SIZE)
        sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
        loader = DataLoader(dataset, BATCH, sampler=sampler)
        sampler.set_epoch(5)
        own = [_first(Feed(loader)), _first(Feed(loader, epochs=1))]
        assert sampler.epoch == 0
        sampler.set_epoch(5)
        assert own[0] == _first(loader) != own[1]


def _first(batches: Any) -> list[int]:
    batch = batches.draw()[1] if isinstance(batches, Feed) else next(iter(batches))
    return batch.tolist()


class TestOneShot:
    @staticmethod
    def batches():
        for index in range(9):
            yield torch.rand(2) + index

    def test_first_batches_are_kept_while_asked_for(self):
        beginning()
        calm = train(Feed(self.batches()), most=9)
        for at in (0, 2, 5):
            joiner = standby(self.batches, epochs=None)
            go(joiner, calm.places[at])
            assert train(joiner, most=9).batches == calm.batches[at + 1 :]

    def test_what_is_gone_is_said(self):
        feed = Feed(self.batches())
        position = feed.position()
        train(feed, most=2)
        with pytest.raises(ConfigError, match=r"generator: 2 batches .* object whose __iter__"):
            feed.seek(position)


class TestLimits:
    def test_a_budget_is_kept_and_the_rest_done_at_the_seek(self, monkeypatch):
        clock = ModuleType("clock")  # a loader of the program would be begun with its variables
        clock.now_s = 0.0
        clock.monotonic = lambda: clock.now_s

        class Slow:
            def __iter__(self):
                for index in range(100):
                    clock.now_s += 0.005
                    yield index

        monkeypatch.setattr("trainmover_executor.feed.feed.time", clock)
        feed = Feed(Slow())
        trace = train(feed, most=40)
        other = Feed(Slow())
        position = unpack_tree(trace.places[-1])["feed"]
        assert not other.approach(position, budget_s=0.02)
        assert other.position()["consumed"] == 4
        assert other.cost_s == pytest.approx(0.02)
        other.seek(position)
        assert other.draw() == (True, 40)

    def test_who_follows_draws_rather_than_resumes_again(self, monkeypatch):
        """A loader that takes a second to resume would be as far behind when it has."""
        now_s = 0.0
        resumed: list[int] = []

        class Heavy:
            at = 0

            def __iter__(self):
                nonlocal now_s
                while self.at < 1_000:
                    self.at += 1
                    now_s += 0.01
                    yield self.at

            def state_dict(self):
                return {"at": self.at}

            def load_state_dict(self, state):
                nonlocal now_s
                now_s += 1.0
                self.at = state["at"]
                resumed.append(self.at)

        clock = SimpleNamespace(monotonic=lambda: now_s)
        for module in ("feed", "sources.stateful"):
            monkeypatch.setattr(f"trainmover_executor.feed.{module}.time", clock)
        places = [unpack_tree(place)["feed"] for place in train(Feed(Heavy()), most=700).places]
        other = Feed(Heavy())
        assert other.approach(places[100], budget_s=5.0)
        assert other.approach(places[300], budget_s=5.0)
        other.seek(places[310])
        assert len(resumed) == 1
        other.seek(places[600])
        assert len(resumed) == 2, "the job waits, and this is quicker"
        assert other.draw() == (True, 602)

    @pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
    @pytest.mark.parametrize("persistent", [False, True])
    def test_workers_do_not_load_what_a_follower_drops(self, persistent, monkeypatch):
        monkeypatch.setattr("trainmover_executor.feed.sources.stateful._QUICK_S", 0.0)
        loaded = torch.zeros(1, dtype=torch.int64).share_memory_()

        class Counts(Numbers):
            def __getitem__(self, index):
                loaded.add_(1)
                return super().__getitem__(index % SIZE)

            def __len__(self):
                return 100 * BATCH

        def make() -> Feed:
            loader = StatefulDataLoader(
                Counts(), BATCH, num_workers=1, persistent_workers=persistent, shuffle=True
            )
            return Feed(loader, epochs=2)

        beginning()
        calm = train(make(), most=170)
        places = [unpack_tree(place)["feed"] for place in calm.places]
        seed_all(99)
        other = make()
        assert other.approach(places[5], budget_s=30.0)
        loaded.zero_()
        assert other.approach(places[80], budget_s=30.0)
        assert loaded.item() < 20 * BATCH, "and not 80 batches"
        assert other.approach(places[90], budget_s=30.0)
        go(other, calm.places[91])
        assert train(other, most=10).batches == calm.batches[92:102]
        loaded.zero_()
        assert other.approach(places[165], budget_s=30.0), "in the next pass"
        assert loaded.item() < 30 * BATCH
        assert not other.approach(places[169], budget_s=0.0)
        at = other.position()["consumed"]
        seed_all(3)
        assert train(other, most=1).batches[0][:2] == calm.batches[100 + at][:2]

    def test_a_state_that_only_pickle_could_carry_is_said(self):
        class Odd(Again):
            def state_dict(self):
                return {"at": [object()]}

            def load_state_dict(self, state):
                pass

        feed = Feed(Odd())
        feed.draw()
        with pytest.raises(ConfigError, match=r"position of a Odd .* state at /at/0 is a .*object"):
            feed.position()

    def test_data_that_ends_too_early_is_said(self):
        position = unpack_tree(train(Feed(Again()), most=5).places[-1])["feed"]

        class Short(Again):
            def __iter__(self):
                yield from list(super().__iter__())[:2]

        with pytest.raises(DataEndedError, match="Short ends after 2 batches, and 5"):
            Feed(Short()).seek(position)

    def test_an_unused_worker_of_the_program_is_replaced(self):
        loader = DataLoader(Numbers(), BATCH, num_workers=1, persistent_workers=True)
        assert len(list(loader)) == 8
        assert len(train(Feed(loader, epochs=2), most=100).batches) == 16


@pytest.mark.parametrize("kind", [list, TensorDataset])
def test_data_that_the_program_computed_otherwise_is_refused(kind: type) -> None:
    def feed(value: float) -> Feed:
        batches = [torch.full((2,), value), torch.ones(2)]
        return Feed(batches if kind is list else DataLoader(TensorDataset(*batches)))

    theirs = feed(0.5)
    theirs.draw()
    feed(0.5).seek(theirs.position())
    with pytest.raises(ConfigError, match=r"session.between_steps\(work\)"):
        feed(0.25).seek(theirs.position())


class Forever:
    """Goes on with one iterator in the next pass."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader, self.batches = loader, None

    def __iter__(self) -> Iterator[Any]:
        self.batches = self.batches or iter(self.loader)
        for _ in range(3):
            yield next(self.batches)


def test_an_iterator_that_a_loader_keeps_from_pass_to_pass_is_said() -> None:
    feed = Feed(Forever(DataLoader(range(40), batch_size=2)), epochs=3)
    with structlog.testing.capture_logs() as logs:
        while feed.draw()[0]:
            pass
    (said,) = [each for each in logs if "keeps an iterator" in each["event"]]
    assert said["attribute"] == "Forever.batches"
    assert "session.cycle" in said["cure"]


class _WithLength(IterableDataset[int]):
    """As webdataset's pipelines are with ``with_length``: a length, and no items by number."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def test_an_iterable_data_set_with_a_length_is_iterated_over() -> None:
    feed = Feed(_WithLength())
    assert [batch for _, batch in iter(feed.draw, (False, None))] == [0, 1, 2, 3, 4]


def test_what_a_class_of_a_package_iterates_in_its_own_order_is_given_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Shuffling(list[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([2, 0, 1])

    monkeypatch.setattr(Shuffling, "__module__", "package.streaming")
    feed = Feed(Shuffling([10, 11, 12]))
    assert [batch for _, batch in iter(feed.draw, (False, None))] == [2, 0, 1]


def test_a_pass_that_is_used_up_leaves_its_generator_where_the_job_has_it() -> None:
    """Torch's ``RandomSampler`` draws once more where it ends."""

    def passes(feed: Feed, count: int) -> list[int]:
        return [int(batch[0]) for _, batch in (feed.draw() for _ in range(count))]

    def made() -> tuple[DataLoader[Any], Feed]:
        data = TensorDataset(torch.arange(12))
        loader = DataLoader(
            data,
            batch_size=4,
            shuffle=True,
            generator=torch.Generator().manual_seed(3),
            collate_fn=lambda items: torch.stack([item for (item,) in items]),
        )
        return loader, Feed(loader)

    loader, feed = made()
    passes(feed, 3)
    position = unpack_tree(pack_tree(feed.position()))
    assert feed.draw() == (False, None)
    theirs = passes(Feed(loader), 3)

    loader, feed = made()
    passes(feed, 1)
    feed.seek(position)
    feed.finish()
    assert passes(Feed(loader), 3) == theirs


class _Resumable:
    """As torchtext's: it counts what it gave, and leaves that out."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        self.given = 0
        for index in range(20):
            if self.given > index:
                continue
            self.given += 1
            yield index


def test_a_loader_that_looks_at_what_it_gave_gives_the_same_to_one_that_follows() -> None:
    job, loader = Feed(_Resumable()), _Resumable()
    standby = Feed(loader)
    for _ in range(4):
        job.draw()
    standby.approach(unpack_tree(pack_tree(job.position())), budget_s=5)
    for _ in range(3):
        job.draw()
    loader.given = 7  # the program's variables come, of which it is one
    position = unpack_tree(pack_tree(job.position()))
    standby.approach(position, budget_s=5)
    loader.given = 7
    standby.seek(position)
    loader.given = 7
    assert standby.draw() == job.draw() == (True, 7)
