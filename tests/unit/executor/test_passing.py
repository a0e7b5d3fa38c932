"""What a body made and the code behind its vote reads."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trainmover_executor.program.liveness import live_names, read_names
from trainmover_executor.program.values.passing import PassingValues, is_shape_of
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

MIB = 1024 * 1024


def sent(tree: Any) -> Any:
    return unpack_tree(pack_tree({"it": tree}))["it"]


def the(tree: dict[str, Any], name: str) -> Any:
    (found,) = [value for path, value in tree.items() if path.endswith(f".{name}")]
    return found


def body(
    variables: LoopVariables, *, fill: float = 1.0, batch: int = 6, take: Any = None
) -> Iterator[Any]:
    """A step in whose body logits and images are large; a joiner's takes what was told."""
    variables.changed(sys._getframe(), asks=True)
    logits = torch.full((64, 1000), fill)
    images = torch.zeros(batch, 3, 64, 64)
    here = sys._getframe()
    yield variables.load(take, here) if take else variables.changed(here, votes=True)
    yield logits.max().item(), images.size(0), len(images), images.shape[0]


class TestTold:
    def test_what_is_read_is_told_whole_and_of_the_rest_the_shape(self) -> None:
        tree = sent(next(body(LoopVariables([]))))
        assert torch.equal(the(tree, "logits"), torch.ones(64, 1000))
        assert the(tree, "images")["shape"] == [6, 3, 64, 64]

    def test_what_is_read_and_too_large_is_named_once(self) -> None:
        variables = LoopVariables([])
        variables.lasting.passing.limit = 1000
        tree = sent(next(body(variables)))
        assert the(tree, "logits")["shape"] == [64, 1000]
        ((path, nbytes),) = variables.lasting.pass_on(step_s=0.1).items()
        assert path.endswith(".logits")
        assert nbytes == 256_000
        variables.lasting.passing.limit = 1000
        next(body(variables))
        assert variables.lasting.pass_on(step_s=0.1) == {}

    def test_a_long_step_has_time_for_more(self) -> None:
        variables = LoopVariables([])
        variables.lasting.pass_on(step_s=4)
        assert variables.lasting.passing.limit == 8 * MIB

    def test_what_lasts_from_step_to_step_is_told_otherwise(self) -> None:
        passing = PassingValues(limit=MIB)
        passing.begin(everything=True, read=())
        passing.lasts("main.table")
        passing.begin(everything=False, read={"main.table", "main.out"})
        assert not passing.admits("main.table", torch.zeros(10_000))
        assert passing.admits("main.out.logits", torch.zeros(10_000))

    def test_a_name_for_a_weight_is_none(self) -> None:
        weight = torch.zeros(10_000)
        place = weight.untyped_storage().data_ptr()
        passing = PassingValues(limit=MIB, addresses=lambda: [place])
        passing.begin(everything=False, read={"main.weight", "main.out"})
        assert not passing.admits("main.weight", weight.view(100, 100))
        assert passing.admits("main.out", weight + 1)

    def test_with_a_history_it_is_told_without_one(self) -> None:
        passing, weight = PassingValues(limit=MIB), torch.ones(10_000, requires_grad=True)
        passing.begin(everything=False, read={"main.out"})
        out = weight * 2
        assert passing.admits("main.out", out)
        assert not sent(passing.tree("main.out", out)).requires_grad

    def test_small_tensors_beside_a_large_one_are_told_whole(self) -> None:
        passing = PassingValues(limit=1000)
        batch = {"labels": torch.arange(4), "images": torch.zeros(10_000)}
        passing.begin(everything=False, read={"main.batch"})
        assert passing.admits("main.batch", batch)
        tree = sent(passing.tree("main.batch", batch))
        value = restored(tree, None)
        assert torch.equal(value["labels"], torch.arange(4))
        assert value["images"].shape == (10_000,)

    def test_a_batch_that_cannot_be_carried_is_named(self) -> None:
        variables = LoopVariables([])
        variables.lasting.passing.batch = batch = dis.Bytecode("pass")

        def graphs(data: Any) -> Any:
            variables.changed(sys._getframe(), asks=True)
            variables.changed(sys._getframe(), votes=True)
            return data.first_line

        graphs(batch)
        ((path, nbytes),) = variables.lasting.pass_on(step_s=0.1).items()
        assert path.endswith(".data")
        assert nbytes == 0


class TestTaken:
    def test_a_joiner_reads_what_the_dead_rank_made(self) -> None:
        told = sent(next(body(LoopVariables([]))))
        joiner = body(LoopVariables([]), fill=0.5, batch=8, take=told)
        assert next(joiner) == []
        assert next(joiner) == (1.0, 6, 6, 6)

    def test_a_tensor_of_that_shape_stays(self) -> None:
        tree = {"is": "shape", "shape": [2, 3], "dtype": "torch.float32", "device": "cpu"}
        assert is_shape_of(tree, torch.ones(2, 3))
        assert not is_shape_of(tree, torch.ones(2, 3, dtype=torch.float64))
        assert not is_shape_of(tree, torch.ones(3, 3))
        assert torch.equal(restored(tree, torch.ones(3, 3)), torch.zeros(2, 3))


class TestReadNames:
    @pytest.mark.parametrize(
        "expression",
        ["x.size(0)", "x.shape[0]", "len(x)", "x.numel()", "x.dim()", "str(x.dtype)"],
    )
    def test_who_asks_for_a_shape_reads_no_content(self, expression: str) -> None:
        names: dict[str, Any] = {"sys": sys}
        exec(f"def f(x):\n    g = sys._getframe()\n    h(g)\n    return {expression}", names)
        found: list[Any] = []
        names["h"] = lambda frame: found.append((live_names(frame), read_names(frame)))
        names["f"](torch.zeros(3, 4))
        ((live, read),) = found
        assert "x" in live
        assert "x" not in read

    @pytest.mark.parametrize("expression", ["x.sum()", "x[0]", "[x]", "x.size(0) + x.max()"])
    def test_whoever_else_does(self, expression: str) -> None:
        names: dict[str, Any] = {"sys": sys}
        exec(f"def f(x):\n    g = sys._getframe()\n    h(g)\n    return {expression}", names)
        found: list[Any] = []
        names["h"] = lambda frame: found.append(read_names(frame))
        names["f"](torch.zeros(3, 4))
        assert "x" in found[0]
