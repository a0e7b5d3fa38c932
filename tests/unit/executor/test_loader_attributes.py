"""What loaders and samplers change of themselves: told with a pass, and begun with elsewhere."""

from __future__ import annotations

import queue
import random
import sys
import textwrap
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, Sampler, WeightedRandomSampler

from trainmover.errors import ConfigError
from trainmover_executor.feed.attributes.attributes import (
    Attributes,
    attributes_of,
    attributes_of_chain,
)
from trainmover_executor.feed.attributes.changes import Changes
from trainmover_executor.feed.attributes.runs import Run, added, before
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Staged(Sampler):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.stage, self.name, self.seen = 1, "easy", [3]
        self.data = object()

    def __iter__(self) -> Any:
        return iter(range(self.stage))


def told(attributes: Attributes) -> dict[str, Any]:
    tree: dict[str, Any] = unpack_tree(pack_tree(attributes.state()))
    return tree


def test_attributes_are_told_once_they_change() -> None:
    sampler = Staged()
    attributes = attributes_of_chain([sampler])
    assert told(attributes) == {}
    sampler.name = "hard"
    sampler.seen.append(4)
    assert set(told(attributes)) == {"Staged[0].name", "Staged[0].seen"}
    sampler.name = "easy"
    assert "Staged[0].name" in told(attributes)


def test_another_process_begins_a_pass_with_them() -> None:
    here, there = Staged(), Staged()
    mine, theirs = attributes_of_chain([here]), attributes_of_chain([there])
    here.stage, here.seen = 7, [3, 1]
    there.name, kept = "changed by shadow iterations", there.seen
    theirs.state()
    theirs.load(told(mine))
    assert (there.stage, there.name, there.seen) == (7, "easy", [3, 1])
    assert there.seen is kept


def test_weights_of_a_sampler_inside_of_another_are_told() -> None:
    samplers = [WeightedRandomSampler(torch.ones(9), 4) for _ in range(2)]
    mine, theirs = (
        attributes_of_chain([BatchSampler(each, 2, drop_last=False), each]) for each in samplers
    )
    samplers[0].weights[3] = 5.0
    theirs.load(told(mine))
    assert torch.equal(samplers[0].weights, samplers[1].weights)


def test_what_is_too_large_to_be_told_is_refused_where_it_is_another() -> None:
    samplers = [WeightedRandomSampler(torch.ones(200_000), 4) for _ in range(2)]
    mine, theirs = (attributes_of_chain([each]) for each in samplers)
    assert "weights" not in str(told(mine).keys())
    theirs.load(told(mine))
    samplers[0].weights[0] = 2.0
    state = told(mine)
    with pytest.raises(ConfigError, match=r"WeightedRandomSampler\[0\]\.weights"):
        theirs.load(state)
    samplers[1].weights[0] = 2.0
    theirs.load(state)


class Files:
    def __init__(self, count: int = 3000) -> None:
        self.epoch = 0
        self.files = [f"{index}.tar" for index in range(count)]
        self.inner = [Staged()]

    def __iter__(self) -> Any:
        random.shuffle(self.files)
        self.epoch += 1
        return iter(self.files)


class TestLoadersOfOnesOwn:
    def test_the_order_of_a_long_list_goes_to_another_process(self) -> None:
        here, there = Files(), Files()
        mine, theirs = attributes_of(here), attributes_of(there)
        for _ in range(3):
            list(here)
        list(there)
        kept = there.files
        theirs.load(told(mine))
        assert (there.epoch, there.files) == (3, here.files)
        assert there.files is kept

    def test_a_list_that_is_as_at_first_is_not_told(self) -> None:
        here, there = Files(), Files()
        mine, theirs = attributes_of(here), attributes_of(there)
        assert told(mine) == {}
        list(there)
        theirs.load(told(mine))
        assert (there.epoch, there.files) == (0, here.files)

    def test_numbers_of_a_long_list_are_told_where_they_are_others(self) -> None:
        here, there = Files(), Files()
        here.files, there.files = list(range(2000)), list(range(2000))  # type: ignore[assignment]
        mine, theirs = attributes_of(here), attributes_of(there)
        here.files = [7] * 1500  # type: ignore[list-item]
        theirs.load(told(mine))
        assert there.files == here.files

    def test_what_it_was_at_first_is_remembered_from_call_to_call(self) -> None:
        here, there = Files(), Files()
        attributes_of(here).state()
        mine, theirs = attributes_of(here), attributes_of(there)
        list(here)
        mine = attributes_of(here)  # of the next call of session.steps
        theirs.load(told(mine))
        assert there.files == here.files

    def test_what_one_holds_is_remembered_from_loader_to_loader(self) -> None:
        here, there = Files(), Files()
        mine, theirs = ([Files(0) for _ in range(2)] for _ in range(2))
        mine[0].inner = mine[1].inner = here.inner
        theirs[0].inner = theirs[1].inner = there.inner
        for each in (mine[0], theirs[0]):
            attributes_of(each)
        here.inner[0].stage = 5
        attributes_of(theirs[1]).load(told(attributes_of(mine[1])))
        assert there.inner[0].stage == 5

    def test_an_order_of_what_is_not_here_is_refused(self) -> None:
        here, there = Files(), Files(2000)
        mine, theirs = attributes_of(here), attributes_of(there)
        here.files.reverse()
        with pytest.raises(ConfigError, match=r"Files\.files held other items here at first"):
            theirs.load(told(mine))

    def test_a_thread_of_the_loader_may_change_them_meanwhile(self) -> None:
        class Cached:
            def __init__(self) -> None:
                self.cache = {str(at): (at,) for at in range(300)}
                self.passes = 0

        loader, over, interval = Cached(), threading.Event(), sys.getswitchinterval()

        def change() -> None:
            at = 300
            while not over.wait(0.0001):
                loader.cache[str(at)] = (at,)
                loader.cache.pop(str(at - 300), None)
                at += 1

        attributes = attributes_of(loader)
        thread = threading.Thread(target=change)
        sys.setswitchinterval(1e-4)
        thread.start()
        try:
            for loader.passes in range(1, 60):
                state = told(attributes)
                attributes.load(state)
        finally:
            over.set()
            thread.join()
            sys.setswitchinterval(interval)
        assert state["Cached.passes"] == 59

    def test_objects_of_the_program_in_it_are_looked_into(self) -> None:
        here, there = Files(), Files()
        mine, theirs = attributes_of(here), attributes_of(there)
        here.inner[0].stage = 9
        theirs.load(told(mine))
        assert there.inner[0].stage == 9


class Mixture:
    def __init__(self) -> None:
        self.weights, self.drawn = [1.0, 2.0], 0


def changes_of(mixture: Mixture, *, told: Any = ()) -> Changes:
    return Changes(mixture, [("mixture", mixture)], told=told)


def draw(changes: Changes, mixture: Mixture, *, dropped: bool = False) -> list[float]:
    changes.before(dropped=dropped)
    mixture.drawn += 1
    changes.after()
    return list(mixture.weights)


class TestChangesInThePass:
    def test_what_the_program_changes_is_made_again_at_the_same_batch(self) -> None:
        here, there = Mixture(), Mixture()
        changes = changes_of(here)
        drawn_with = []
        for at in range(6):
            if at == 4:
                here.weights[1] = 7.0
            drawn_with.append(draw(changes, here))
        told = unpack_tree(pack_tree({"told": changes.told}))["told"]
        assert told == [["mixture.weights", [[4, [1.0, 7.0]]]]]
        again = changes_of(there, told=told)
        assert [draw(again, there, dropped=True) for _ in range(6)] == drawn_with
        assert again.told == told

    def test_what_draws_change_themselves_is_no_change_of_the_program(self) -> None:
        mixture = Mixture()
        changes = changes_of(mixture)
        for _ in range(5):
            draw(changes, mixture)
        assert changes.told == []

    def test_a_pass_with_too_many_changes_cannot_be_drawn_again(self) -> None:
        mixture = Mixture()
        changes = changes_of(mixture)
        for at in range(400):
            mixture.weights[0] = float(at + 2)
            draw(changes, mixture)
        assert changes.told is None
        with pytest.raises(ConfigError, match="Mixture more than 256 times in a pass"):
            changes_of(Mixture(), told=changes.told)

    def test_counts_take_an_entry_each_however_long_the_pass_is(self) -> None:
        here = Mixture()
        here.step, here.updates = 0, 0  # type: ignore[attr-defined]
        changes = changes_of(here)
        for at in range(2000):
            draw(changes, here)
            here.step += 1  # type: ignore[attr-defined]
            here.updates += at % 4 == 3  # type: ignore[attr-defined]
        assert changes.told == [
            ["mixture.step", [[1, 1, 1999, 1, 1]]],
            ["mixture.updates", [[4, 1, 499, 4, 1]]],
        ]

    def test_a_follower_goes_on_with_what_is_told_later(self) -> None:
        here, there = Mixture(), Mixture()
        mine, theirs = changes_of(here), changes_of(there)
        drawn_with = []
        for at in range(9):
            here.weights[0] = float(at // 3)
            drawn_with.append(draw(mine, here))
            if at == 4:
                early = mine.told
        assert early is not None
        assert theirs.go_on(early)
        redrawn = [draw(theirs, there, dropped=True) for _ in range(5)]
        assert theirs.go_on(mine.told)
        redrawn += [draw(theirs, there, dropped=True) for _ in range(4)]
        assert redrawn == drawn_with
        assert not theirs.go_on(early), "it has drawn what was changed behind that"
        assert not theirs.go_on(None)

    def test_what_a_thread_may_change_is_left_alone(self) -> None:
        mixture = Mixture()
        mixture.queue = queue.Queue()  # type: ignore[attr-defined]
        changes = changes_of(mixture)
        for at in range(5):
            mixture.weights[0] = float(at)
            draw(changes, mixture)
        assert changes.told == []


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-3, 3) | st.floats(0, 1) | st.text())))
def test_runs_say_what_was_noted_at_any_time(noted: list[tuple[int, Any]]) -> None:
    runs: list[Run] = []
    history: dict[int, Any] = {}
    earlier: dict[int, list[Run]] = {}
    drawn = 0
    for distance, value in noted:
        earlier[drawn] = list(runs)
        drawn += distance
        history[drawn] = value
        runs = added(runs, drawn, value)
    told = [Run.of_tree(run.tree()) for run in runs]
    assert told == runs
    again = {at: run.value_at(at) for at in range(drawn + 1) for run in told if run.has(at)}
    assert again == history
    for at, then in earlier.items():
        assert list(before(runs, at + 1)) == then


class TestWhatItsCodeUses:
    """Code that runs twice stands for two processes: each time it has globals of its own."""

    @staticmethod
    def loaders(code: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        monkeypatch.setattr(Attributes, "_were_told", False)
        every: list[dict[str, Any]] = []
        for _ in range(2):
            names: dict[str, Any] = {"__name__": __name__}
            exec(textwrap.dedent(code), names)
            every.append(names)
        return every

    @pytest.mark.parametrize(
        ("code", "count"),
        [
            (
                """
                passes = 0
                class Loader:
                    def __iter__(self):
                        global passes
                        passes += 1
                        yield from range(passes)
                loader, count = Loader(), lambda: passes
                """,
                "a global variable",
            ),
            (
                """
                state = {"passes": 0}
                def begin():
                    state["passes"] += 1
                    return range(state["passes"])
                class Loader:
                    @property
                    def order(self):
                        return begin()
                    def __iter__(self):
                        yield from self.order
                loader, count = Loader(), lambda: state["passes"]
                """,
                "a global dictionary of a function that a property calls",
            ),
            (
                """
                def make():
                    passes = 0
                    class Loader:
                        def __iter__(self):
                            nonlocal passes
                            passes += 1
                            yield from range(passes)
                    return Loader(), lambda: passes
                loader, count = make()
                """,
                "a variable of the function around it",
            ),
            (
                """
                import functools
                def begin():
                    begin.passes += 1
                    return range(begin.passes)
                begin.passes = 0
                class Loader:
                    def __init__(self, begin):
                        self.begin = functools.partial(begin)
                    def __iter__(self):
                        yield from self.begin()
                loader, count = Loader(begin), lambda: begin.passes
                """,
                "an attribute of a function",
            ),
            (
                """
                import argparse
                options = argparse.Namespace(passes=0)
                class Loader:
                    def __iter__(self):
                        options.passes += 1
                        yield from range(options.passes)
                loader, count = Loader(), lambda: options.passes
                """,
                "an attribute of a global object",
            ),
        ],
    )
    def test_goes_to_another_process(
        self, code: str, count: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, there = self.loaders(code, monkeypatch)
        mine, theirs = attributes_of(here["loader"]), attributes_of(there["loader"])
        for _ in range(3):
            list(here["loader"])
        list(there["loader"])
        theirs.load(told(mine))
        assert there["count"]() == 3, count
        list(there["loader"])
        there_again = attributes_of(there["loader"])
        there_again.load({})
        assert there["count"]() == 0, "nobody told of it: it is as it was at first"

    def test_generators_of_a_module_stand_where_they_stood(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = """
        import random
        rng = random.Random(3)
        class Loader:
            def __iter__(self):
                yield rng.random()
        loader = Loader()
        """
        here, there = self.loaders(code, monkeypatch)
        mine, theirs = attributes_of(here["loader"]), attributes_of(there["loader"])
        drawn = [*here["loader"], *here["loader"]]
        state = told(mine)
        theirs.load(state)
        assert list(there["loader"]) == list(here["loader"]) != drawn[:1]

    def test_what_no_pass_changes_stays_each_processes_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = """
        import os
        handle = os.getpid()
        def first():
            return handle
        class Loader:
            def __iter__(self):
                yield first()
        loader = Loader()
        """
        here, there = self.loaders(code, monkeypatch)
        there["handle"] = here["handle"] + 1
        mine, theirs = attributes_of(here["loader"]), attributes_of(there["loader"])
        theirs.load(told(mine))
        assert there["handle"] == here["handle"] + 1

    def test_a_variable_that_is_first_seen_in_the_middle_of_training_is_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = """
        level = 0
        class Plain:
            def __iter__(self):
                yield 1
        class Loader:
            def __iter__(self):
                yield level
        """
        here, there = self.loaders(code, monkeypatch)
        attributes_of(here["Plain"]()).state()
        here["level"] = 5
        mine, theirs = attributes_of(here["Loader"]()), attributes_of(there["Loader"]())
        theirs.load(told(mine))
        assert there["level"] == 5
