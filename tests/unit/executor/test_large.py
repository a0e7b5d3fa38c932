"""Large tensors in the program's variables: told of by prints, carried, kept where it is needed."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from trainmover.errors import ProtocolError
from trainmover_executor.checks.rank_own import RankOwn
from trainmover_executor.moves.predict import predicted
from trainmover_executor.program.tracked import TrackedValues
from trainmover_executor.program.values.large import holds_prints, print_of
from trainmover_executor.program.values.lasting import LastingValues
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree
from trainmover_executor.state.training import TrainingState

LARGE = 6000


def state_of(width: int = 128) -> TrainingState:
    return TrainingState(models=[nn.Linear(width, width, bias=False)], optimizers=[], others={})


def the(tree, name):
    """The one variable whose path ends so."""
    (path,) = [path for path in tree if path.endswith(f".{name}")]
    return tree[path]


def names(tree):
    """Without those of pytest's own."""
    return {path.rpartition(".")[2] for path in tree if "@py" not in path}


class TestPrints:
    @given(
        st.integers(0, 700),
        st.sampled_from([torch.float32, torch.int64, torch.uint8, torch.bfloat16]),
    )
    def test_equal_tensors_have_equal_prints(self, size, dtype):
        tensor = torch.arange(size).to(dtype)
        assert print_of(tensor) == print_of(tensor.clone())

    @given(st.integers(2, 700), st.data())
    def test_one_element_or_the_order_of_two_shows(self, size, data):
        tensor = torch.randperm(size, generator=torch.Generator().manual_seed(size))
        one, other = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2))
        swapped = tensor.clone()
        swapped[[one, other]] = tensor[[other, one]]
        assert (print_of(tensor) == print_of(swapped)) == (one == other)
        changed = tensor.clone()
        changed[one] += 1
        assert print_of(tensor) != print_of(changed)

    def test_a_view_has_the_print_of_its_copy(self):
        tensor = torch.randn(90, 90)
        assert print_of(tensor.t()) == print_of(tensor.t().contiguous())


def best_so_far(steps, *, variables, take=None, contents=None):
    """A program that keeps its best weights."""
    weights = torch.zeros(LARGE)
    best = None
    for index in range(steps):
        variables.changed(sys._getframe(), asks=True)
        weights = weights + 1.0
        if index == 1:
            best = {"weights": {"w": weights.clone()}, "at": index}
    if take is not None:
        missing = variables.load(take, sys._getframe(), contents=contents)
        return missing, best, weights
    return variables.changed(sys._getframe(), asks=True), best, weights


class TestCarried:
    def test_the_best_weights_go_to_a_joiner(self):
        giver = LoopVariables([])
        tree, best, weights = best_so_far(4, variables=giver)
        assert holds_prints(the(tree, "best"))
        told = unpack_tree(pack_tree(tree))
        contents = {name: each.clone() for name, each in giver.contents.items()}
        missing, taken, theirs = best_so_far(
            1, variables=LoopVariables([]), take=told, contents=contents
        )
        assert missing == []
        assert taken["at"] == best["at"]
        assert torch.equal(taken["weights"]["w"], best["weights"]["w"])
        assert torch.equal(theirs, weights)

    def test_what_did_not_come_is_left_alone_and_named(self):
        giver = LoopVariables([])
        tree, _, _ = best_so_far(4, variables=giver)
        missing, taken, _ = best_so_far(1, variables=LoopVariables([]), take=tree, contents={})
        assert names(missing) == {"best", "weights"}
        assert taken is None

    def test_two_tensors_that_hold_the_same_stay_two(self):
        def program(take=None, contents=None):
            first = second = None
            variables.changed(sys._getframe(), asks=True)
            first, second = torch.zeros(LARGE), torch.zeros(LARGE)
            if take is not None:
                variables.load(take, sys._getframe(), contents=contents)
                first += 1
                return first, second
            return variables.changed(sys._getframe(), asks=True), first, second

        variables = LoopVariables([])
        tree, *_ = program()
        contents = variables.contents
        variables = LoopVariables([])
        first, second = program(tree, contents)
        assert first.sum() == LARGE
        assert second.sum() == 0

    def test_a_replica_that_has_the_same_is_certain_and_another_one_is_not(self):
        tree, *_ = best_so_far(4, variables=LoopVariables([]))
        certain, _ = predicted(tree, then=tree, now=tree)
        assert certain.keys() == tree.keys()
        other = {path: {**value} for path, value in tree.items() if path.endswith(".weights")}
        (path,) = other
        other[path]["print"] = "another"
        certain, _ = predicted(tree, then={**tree, **other}, now={**tree, **other})
        assert path not in certain


class TestWhatLasts:
    def test_what_a_step_makes_for_itself_is_left_alone(self):
        variables = LoopVariables([])
        variables.keep(sys._getframe())

        def program():
            kept = torch.zeros(LARGE)
            for _ in range(3):
                variables.changed(sys._getframe(), asks=True)
                variables.keep(sys._getframe())
                logits = torch.randn(LARGE)
                kept = kept + logits
                seen = variables.changed(sys._getframe(), votes=True)
                kept = kept + kept.sum()
            return seen

        assert names(program()) == {"kept"}

    def test_what_the_session_carries_anyway_is_left_alone(self):
        state = state_of()
        variables = LoopVariables([], lasting=LastingValues(state))

        def program():
            held = None
            variables.changed(sys._getframe(), asks=True)
            held = state.models[0].state_dict()
            copied = copy.deepcopy(held)
            told = names(variables.changed(sys._getframe(), asks=True))
            assert told == {"copied", "held[]"}  # of what is carried anyway, its keys alone
            return held, copied

        program()

    def test_what_is_beyond_all_measure_is_left_alone(self):
        variables = LoopVariables([], lasting=LastingValues(state_of()))

        def program():
            history = None
            variables.changed(sys._getframe(), asks=True)
            history = torch.zeros(64 * 1024 * 1024)
            assert not names(variables.changed(sys._getframe(), asks=True))
            found = variables.passed_over(sys._getframe())
            assert any(path.endswith(".history") for path, _ in found)
            return history

        program()

    def test_a_loader_that_is_made_anew_in_each_round_is_not_passed_over(self):
        variables = LoopVariables([])

        def program():
            loader = DataLoader(range(4))
            assert [p for p, _ in variables.passed_over(sys._getframe()) if p.endswith(".loader")]
            variables.ignore(loader)
            assert not [
                p for p, _ in variables.passed_over(sys._getframe()) if p.endswith(".loader")
            ]
            return loader

        program()

    def test_the_data_of_the_steps_is_left_alone(self):
        variables = LoopVariables([])

        def program():
            batches = None
            variables.changed(sys._getframe(), asks=True)
            batches = [torch.zeros(LARGE) for _ in range(3)]
            variables.ignore(batches)
            assert not names(variables.changed(sys._getframe(), asks=True))
            return batches

        program()


class TestPutBack:
    def program(self, variables, *, body, steps=1):
        center, best = torch.zeros(LARGE), {"w": torch.zeros(LARGE)}
        first = center
        for index in range(steps):
            variables.changed(sys._getframe(), asks=True)
            variables.keep(sys._getframe())
            if body == "in place":
                center += 1
            else:
                center, best = center + 1, {"w": torch.ones(LARGE)}
            variables.changed(sys._getframe(), votes=True)
            if index < steps - 1:
                continue
            variables.put_back(sys._getframe())
        return center, best, first

    def test_another_tensor_of_the_same_name(self):
        center, best, first = self.program(LoopVariables([]), body="another")
        assert center is first
        assert not best["w"].any()

    def test_a_tensor_that_bodies_were_seen_to_change_in_place(self):
        center, _, first = self.program(LoopVariables([]), body="in place", steps=3)
        assert center is first
        assert torch.equal(center, torch.full((LARGE,), 2.0))

    def test_the_first_change_in_place_is_not_kept_and_said(self):
        with pytest.raises(ProtocolError, match=r"center.*cannot be put back.*session\.track"):
            self.program(LoopVariables([]), body="in place")


class Keeper:
    """Tells what two ranks said with their votes."""

    def __init__(self, own, theirs):
        self.own, self.theirs = own, theirs

    def own_variables(self, *, step):
        return self.own

    def neighbours_variables(self, *, step):
        return self.theirs


class TestRankOwn:
    def tree(self, variables, *, rank, size=LARGE):
        def program():
            state = None
            variables.changed(sys._getframe(), asks=True)
            state = torch.full((size,), float(rank))
            tree = variables.changed(sys._getframe(), asks=True)
            yield tree
            yield variables.changed(sys._getframe(), asks=True), state

        return program()

    def test_what_differs_is_told_whole_from_then_on(self):
        variables = LoopVariables([])
        mine, theirs = self.tree(variables, rank=0), self.tree(LoopVariables([]), rank=1)
        RankOwn(Keeper(next(mine), next(theirs)), variables).look(3, step_s=0.1)
        tree, state = next(mine)
        assert torch.equal(the(tree, "state"), state)

    def test_what_is_alike_is_not(self):
        variables = LoopVariables([])
        mine, theirs = self.tree(variables, rank=1), self.tree(LoopVariables([]), rank=1)
        RankOwn(Keeper(next(mine), next(theirs)), variables).look(3, step_s=0.1)
        tree, _ = next(mine)
        assert holds_prints(the(tree, "state"))

    @pytest.mark.parametrize(("mib", "step_s"), [(3, 2), (15, 60)])
    def test_in_a_long_step_there_is_time_for_more(self, mib, step_s):
        variables, size = LoopVariables([]), mib * 1024 * 256
        mine = self.tree(variables, rank=0, size=size)
        theirs = self.tree(LoopVariables([]), rank=1, size=size)
        RankOwn(Keeper(next(mine), next(theirs)), variables).look(3, step_s=step_s)
        tree, state = next(mine)
        assert torch.equal(the(tree, "state"), state)

    def test_what_is_too_large_is_warned_of(self, capsys):
        variables = LoopVariables([])
        size = 1024 * 1024
        mine = self.tree(variables, rank=0, size=size)
        theirs = self.tree(LoopVariables([]), rank=1, size=size)
        RankOwn(Keeper(next(mine), next(theirs)), variables).look(3, step_s=0.1)
        tree, _ = next(mine)
        assert holds_prints(the(tree, "state"))
        assert "differs from rank to rank and is too large" in capsys.readouterr().out

    def test_what_a_neighbour_lacks_twice_is_told_whole(self):
        variables = LoopVariables([])
        mine = self.tree(variables, rank=0)
        own = RankOwn(Keeper(next(mine), {}), variables)
        own.look(3, step_s=0.1)  # the neighbour may find it with its next look
        own.look(4, step_s=0.1)
        tree, state = next(mine)
        assert torch.equal(the(tree, "state"), state)

    def test_what_a_neighbour_lacks_and_is_too_large_is_warned_of(self, capsys):
        variables = LoopVariables([])
        own = RankOwn(Keeper(next(self.tree(variables, rank=0, size=1024 * 1024)), {}), variables)
        for step in (3, 4, 5):
            own.look(step, step_s=0.1)
        out = capsys.readouterr().out
        assert out.count("this rank alone has a large variable") == 1
        assert "keep it at all ranks" in out

    def test_a_rank_that_keeps_nothing_of_others_says_nothing(self):
        variables = LoopVariables([])
        mine = self.tree(variables, rank=0)
        own = RankOwn(Keeper(next(mine), None), variables)
        for step in (3, 4, 5):
            own.look(step, step_s=0.1)
        tree, _ = next(mine)
        assert holds_prints(the(tree, "state"))


class Memory:
    """What a program passes by name: large, and changed in place."""

    def __init__(self, value):
        self.values = torch.full((LARGE,), float(value))

    def state_dict(self):
        return {"held": {"values": self.values}, "seen": int(self.values[0])}

    def load_state_dict(self, state):
        self.values.copy_(state["held"]["values"])


class TestExtras:
    """Large state that was passed by name: a replica has it, unless it is each rank's own."""

    def rank(self, value, kind=Memory):
        memory, state = kind(value), state_of()
        variables = LoopVariables([memory], extras={"memory": memory}, lasting=LastingValues(state))
        variables.changed(sys._getframe(), asks=True)
        return memory, state, variables

    def told(self, memory, variables):
        memory.values += 1
        return variables.changed(sys._getframe(), asks=True)

    def test_each_ranks_own_is_told_whole_and_kept(self):
        mine, state, variables = self.rank(0)
        theirs, _, others = self.rank(5)
        keeper = Keeper(self.told(mine, variables), self.told(theirs, others))
        RankOwn(keeper, variables).look(3, step_s=0.1)
        tree = self.told(mine, variables)
        assert not holds_prints(tree["session.memory"])
        assert state.own_extras == {"memory"}

        joiner, its_state, its_variables = self.rank(7)
        assert its_variables.load(unpack_tree(pack_tree(tree)), sys._getframe()) == []
        assert torch.equal(joiner.values, mine.values)
        assert its_state.own_extras == {"memory"}

    def test_what_is_alike_for_some_steps_is_not_looked_at_any_more(self):
        mine, state, variables = self.rank(0)
        theirs, _, others = self.rank(0)
        keeper = Keeper({}, {})
        own = RankOwn(keeper, variables)
        for step in range(20):
            keeper.own, keeper.theirs = self.told(mine, variables), self.told(theirs, others)
            own.look(step, step_s=0.1)
        assert "session.memory" not in keeper.own
        assert state.own_extras == set()
        passed_over = dict(variables.passed_over(sys._getframe()))
        assert "session.memory" not in passed_over

    def test_of_other_kinds_the_log_says_that_ranks_differ(self, capsys):
        class Arrays(Memory):
            def state_dict(self):
                return {"held": np.tile(self.values.numpy(), 8)}

            def load_state_dict(self, state):
                self.values.copy_(torch.from_numpy(state["held"][:LARGE]))

        keeper = Keeper({}, {})
        ranks = [self.rank(value, Arrays) for value in (0, 0, 5)]
        for _ in range(10):
            told = [self.told(memory, variables) for memory, _, variables in ranks]
            keeper.own, keeper.theirs = told[0], told[1]
            RankOwn(keeper, ranks[0][2]).look(3, step_s=0.1)
        assert "differs from rank to rank" not in capsys.readouterr().out
        keeper.theirs = told[2]
        RankOwn(keeper, ranks[0][2]).look(3, step_s=0.1)
        assert "differs from rank to rank" in capsys.readouterr().out
        assert "session.memory" not in self.told(ranks[0][0], ranks[0][2])

    def test_of_a_module_the_log_says_that_this_rank_alone_has_it(self, capsys):
        class Average(nn.Linear):
            pass

        average, state = Average(4, 4), state_of()
        variables = LoopVariables([average], extras={"ema": average}, lasting=LastingValues(state))
        own = RankOwn(keeper := Keeper({}, {}), variables)
        for step in range(4):
            with torch.no_grad():
                average.weight += 1
            keeper.own = variables.changed(sys._getframe(), asks=True)
            own.look(step, step_s=0.1)
        assert "this rank alone has a large variable" in capsys.readouterr().out

    def test_of_a_joiner_what_others_tell_no_more_is_alike(self, capsys):
        mine, state, variables = self.rank(0)
        own = RankOwn(keeper := Keeper({}, {}), variables)
        own.joined()
        for step in range(4):
            keeper.own = self.told(mine, variables)
            own.look(step, step_s=0.1)
        assert state.own_extras == set()

    def test_what_does_not_change_shows_nothing(self):
        mine, _, variables = self.rank(0)
        tree = self.told(mine, variables)
        own = RankOwn(Keeper(tree, tree), variables)
        for step in range(20):
            own.look(step, step_s=0.1)
        assert "session.memory" in self.told(mine, variables)


def averaged(steps, *, variables, net, write, take=None, contents=None):
    """A program that averages a copy of the list of its parameters."""
    trained = list(net.parameters())
    average = copy.deepcopy(trained)
    for _ in range(steps):
        variables.changed(sys._getframe(), asks=True)
        variables.keep(sys._getframe())
        for one, each in zip(average, trained, strict=True):
            write(one, each)
        variables.changed(sys._getframe(), votes=True)
    if take is not None:
        missing = variables.load(take, sys._getframe(), contents=contents)
        return missing, average
    return variables.changed(sys._getframe(), asks=True), average


def through_data(one, each):
    one.data.mul_(0.9).add_(each.data, alpha=0.1)


@torch.no_grad()
def in_place(one, each):
    one.lerp_(each + 1, 0.1)


class TestParametersOfTheProgram:
    @pytest.mark.parametrize("write", [through_data, in_place])
    def test_an_average_of_them_goes_to_a_joiner(self, write):
        torch.manual_seed(3)
        state = TrainingState(models=[nn.Linear(6, 6)], optimizers=[], others={})
        (net,) = state.models
        giver = LoopVariables([net], models=[net], lasting=LastingValues(state))
        before = copy.deepcopy(list(net.parameters()))
        tree, average = averaged(3, variables=giver, net=net, write=write)
        assert "average" in names(tree)
        assert "trained" not in names(tree), "the session carries the model"
        contents = {name: each.clone() for name, each in giver.contents.items()}
        other = LoopVariables([net], models=[net], lasting=LastingValues(state))
        missing, taken = averaged(
            1, variables=other, net=net, write=write, take=tree, contents=contents
        )
        assert missing == []
        assert all(map(torch.equal, taken, average))
        assert all(type(each) is nn.Parameter for each in taken)
        assert all(map(torch.equal, net.parameters(), before))

    def test_a_write_through_data_shows(self):
        held = nn.Parameter(torch.zeros(9))
        values = LastingValues()
        values.begin(everything=True)
        assert values.admits("a", [held])
        (large,) = values.tree("a", values._entries["a"].value)
        held.data.add_(1)
        assert not large.is_current

    def test_what_a_step_did_to_them_is_taken_back(self):
        variables = LoopVariables([])
        held = [nn.Parameter(torch.zeros(9))]
        for _ in range(2):
            variables.changed(sys._getframe(), asks=True)
            variables.keep(sys._getframe())
            held[0].data.add_(1)
            variables.changed(sys._getframe(), votes=True)
        variables.changed(sys._getframe(), asks=True)
        variables.keep(sys._getframe())
        held[0].data.add_(1)
        variables.put_back(sys._getframe())
        assert held[0].tolist() == [2.0] * 9
        assert held[0].requires_grad


class TestGivenByName:
    def test_a_list_of_tensors_that_was_not_changed_stays(self):
        """The state that was kept holds the very list that is there."""
        tracked = TrackedValues()
        held = tracked.add({"averages": [torch.zeros(9), torch.zeros(3)]})
        variables = LoopVariables([], extras={"tracked": tracked})
        variables.changed(sys._getframe(), asks=True)
        variables.keep(sys._getframe())
        variables.put_back(sys._getframe())
        assert [len(each) for each in held.averages] == [9, 3]
