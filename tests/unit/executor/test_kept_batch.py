"""Batches that are given again to a body that changed them."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from trainmover.errors import ConfigError
from trainmover_executor.feed.batches.kept import BatchChangedError, Batches, KeptBatch
from trainmover_executor.feed.beside.cycle import Cycle


class Encoding(collections.UserDict[str, Any]):
    """What tokenizers give: a dictionary that is none."""


class Pair(NamedTuple):
    x: torch.Tensor
    names: list[str]


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    names: list[str]


class Loud(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("the way back is not through a method of the program's")


def kept(batch: Any, *, copies: bool = True) -> KeptBatch:
    return KeptBatch(batch, copies=copies)


class TestContainers:
    @pytest.mark.parametrize(
        "make", [dict, collections.OrderedDict, Encoding, Loud], ids=lambda kind: kind.__name__
    )
    def test_what_was_taken_out_is_put_back(self, make):
        batch = make({"x": torch.ones(2), "y": torch.zeros(2), "names": ["a", "b"]})
        one = kept(batch)
        before = {key: id(batch[key]) for key in batch}
        for key in list(before)[1:]:
            batch.pop(key)
        one.put_back(of="step 1")
        assert {key: id(batch[key]) for key in batch} == before
        assert list(batch) == list(before)

    def test_lists_inside_are_put_back_in_place(self):
        names, tags, last = ["a", "b"], {"t"}, collections.deque([1, 2], maxlen=2)
        one = kept((names, tags, last))
        names.pop()
        tags.add("u")
        last.append(3)
        one.put_back(of="step 1")
        assert (names, tags, list(last)) == (["a", "b"], {"t"}, [1, 2])

    @pytest.mark.parametrize("make", [Slotted, Pair])
    def test_what_attributes_hold_is_put_back(self, make):
        batch = make(x=torch.ones(2), names=["a"])
        one = kept(batch)
        batch.names.clear()
        if make is Slotted:
            batch.x = torch.zeros(2)
        one.put_back(of="step 1")
        assert batch.names == ["a"]
        assert batch.x.tolist() == [1, 1]

    def test_attributes_that_a_body_added_are_gone(self):
        batch = Encoding(x=torch.ones(2))
        one = kept(batch)
        batch.device = "cpu"
        one.put_back(of="step 1")
        assert not hasattr(batch, "device")

    def test_a_batch_may_hold_itself(self):
        batch: dict[str, Any] = {}
        batch["all"] = batch
        kept(batch).put_back(of="step 1")
        assert batch["all"] is batch

    def test_what_threads_share_is_left_alone(self):
        class Queue:
            def __init__(self) -> None:
                self.lock = threading.Lock()
                self.waiting = [1]

        queue = Queue()
        one = kept([queue])
        queue.waiting = [1, 2]
        one.put_back(of="step 1")
        assert queue.waiting == [1, 2]

    def test_an_iterator_is_an_error(self):
        with pytest.raises(ConfigError, match=r"holds an iterator \(generator\).*give a list"):
            kept({"micro": (torch.ones(1) for _ in range(4))})


class TestElements:
    def test_changed_elements_are_put_back(self):
        x, array = torch.arange(4.0), np.arange(3)
        one = kept({"x": [x], "array": array})
        x.sub_(1).div_(2)
        array += 1
        assert one.is_changed
        one.put_back(of="step 1")
        assert x.tolist() == [0, 1, 2, 3]
        assert array.tolist() == [0, 1, 2]

    def test_a_change_past_the_count_of_versions_is_seen(self):
        x = torch.ones(3)
        one = kept(x)
        x.data.mul_(2)
        assert one.is_changed
        one.put_back(of="step 1")
        assert x.tolist() == [1, 1, 1]

    def test_another_shape_is_put_back(self):
        x = torch.ones(4)
        one = kept(x)
        x.data = torch.zeros(2, dtype=torch.float64)
        one.put_back(of="step 1")
        assert x.tolist() == [1, 1, 1, 1]
        assert x.dtype is torch.float32

    @pytest.mark.parametrize("copies", [True, False])
    def test_gradients_of_inputs_do_not_add_up(self, copies):
        x = torch.ones(2)
        one = kept(x, copies=copies)
        for _ in range(2):
            one.put_back(of="step 1")
            x.requires_grad_()
            (x * x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2, 2]

    def test_a_batch_that_became_part_of_the_graph_is_put_back(self):
        x, weight = torch.ones(2), torch.ones(2, requires_grad=True)
        one = kept(x)
        x.mul_(weight)
        one.put_back(of="step 1")
        assert x.is_leaf
        assert not x.requires_grad

    def test_what_was_not_copied_is_an_error(self):
        one = kept({"x": [torch.ones(3)]}, copies=False)
        one.put_back(of="step 4")
        one.batch["x"][0].mul_(2)
        with pytest.raises(BatchChangedError, match=r"step 4 has to be done again.* shape \(3,\)"):
            one.put_back(of="step 4")

    def test_what_cannot_be_written_is_left_alone(self):
        array = np.frombuffer(b"abcd", dtype=np.uint8)
        kept({"array": array}).put_back(of="step 1")
        assert array.tolist() == [97, 98, 99, 100]

    def test_what_shares_its_elements_is_put_back(self):
        x = torch.ones(3, 1)
        wide, part = x.expand(3, 4), x[1:]
        one = kept([wide, part, x])
        x.mul_(2)
        one.put_back(of="step 1")
        assert wide.tolist() == [[1.0] * 4] * 3
        assert part.tolist() == [[1.0], [1.0]]

    def test_tensors_of_other_kinds_are_only_looked_at(self):
        with torch.inference_mode():
            made = torch.ones(2)
        sparse = torch.eye(2).to_sparse()
        one = kept([made, sparse])
        assert not one.is_changed
        one.put_back(of="step 1")


class TestBatches:
    def test_copies_are_kept_while_bodies_change_their_batches(self):
        batches = Batches()
        for change in (False, True, False, False, False):
            one = batches.keep(torch.ones(2))
            if change:
                one.batch.add_(1)
            batches.look(one)
        one = batches.keep(torch.ones(2))
        one.batch.add_(1)
        one.put_back(of="step 6")
        assert one.batch.tolist() == [1, 1]

    def test_bodies_that_change_nothing_cost_no_copies(self):
        batches = Batches()
        for _ in range(3):
            batches.look(batches.keep(torch.ones(2)))
        one = batches.keep(torch.ones(2))
        one.batch.add_(1)
        with pytest.raises(BatchChangedError):
            one.put_back(of="step 4")
        assert batches.keep(torch.ones(2), copies=True)

    def test_what_a_cycle_gave_is_given_again_as_it_was(self):
        cycle = Cycle([{"x": torch.full((2,), float(i)), "y": i} for i in range(4)])
        before = cycle.position()
        for _ in range(2):
            batch = next(cycle)
            assert batch.pop("y") == 0
            assert batch["x"].sub_(1).tolist() == [-1, -1]
            cycle.seek(before)
