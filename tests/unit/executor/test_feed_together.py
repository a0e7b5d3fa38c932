"""Lists of batches: what is drawn is the same, and so are places."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.loaders import DRAWN, MAP_STYLE, SEQUENCES, STATEFUL, go, seed_all, train

from trainmover_executor.feed import Feed

ALL = {**MAP_STYLE, **DRAWN, **STATEFUL, **SEQUENCES}
SOME = ("distributed", "endless", "workers, four", "persistent", "iterable, workers", "torchdata")
EPOCHS, TOGETHER, MOST = 3, 2, 13


def feed_of(make: Any, together: int | None) -> Feed:
    seed_all(1)
    return Feed(make(), epochs=EPOCHS, replay=3, together=together)


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("name", [*SOME, "list"])
class TestTogether:
    def test_a_joiner_goes_on_with_the_same_lists(self, name: str):
        calm = train(feed_of(ALL[name], TOGETHER), most=MOST)
        for at in (1, len(calm.batches) - 3):
            joiner = feed_of(ALL[name], TOGETHER)
            train(joiner, most=3)
            seed_all(99)
            go(joiner, calm.places[at])
            assert train(joiner, most=MOST - at - 1).batches == calm.batches[at + 1 :]


@pytest.mark.parametrize("together", [1, 2, 3, 5, 100])
def test_lists_end_with_a_pass(together: int) -> None:
    feed = Feed([1, 2, 3, 4, 5], epochs=2, together=together)
    drawn = []
    while (answer := feed.draw())[0]:
        drawn.append(answer[1])
    a_pass = [[1, 2, 3, 4, 5][at : at + together] for at in range(0, 5, together)]
    assert drawn == [*a_pass, *a_pass]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_steps_before_a_checkpoint_are_left_out(steps: int) -> None:
    whole = Feed(list(range(5)), epochs=2, together=2)
    drawn = [whole.draw() for _ in range(6)]
    feed = Feed(list(range(5)), epochs=2, together=2)
    feed.skip(steps)
    assert [feed.draw() for _ in range(6 - steps)] == drawn[steps:]
