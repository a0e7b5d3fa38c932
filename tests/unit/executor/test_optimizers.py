"""What optimizers keep, wherever they keep it: another process that takes it over goes on alike."""

from __future__ import annotations

import collections
import enum
import itertools
import json

import pytest
import torch
from torch import nn

from trainmover.errors import ConfigError, ProtocolError
from trainmover_executor.checks.lookout import _hidden_in
from trainmover_executor.checks.portable import check_state
from trainmover_executor.state.optimizers.wrapped import optimizers_in
from trainmover_executor.state.packing.codec import decode, encode
from trainmover_executor.state.training import TrainingState


class Codes(torch.Tensor):
    """A tensor that is made of others, as quantized ones are."""

    @staticmethod
    def __new__(cls, codes, scale):
        kind = {"dtype": torch.float32, "device": codes.device}
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, **kind)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        raise NotImplementedError(f"{func} of codes")

    def value(self):
        return self.codes.float() * self.scale

    def set(self, value):
        self.scale.copy_(value.abs().max() / 100 + 1e-12)
        self.codes.copy_((value / self.scale).round().to(torch.int8))


class Norm(enum.Enum):
    SIGN = 1
    PLAIN = 2


class Projection:
    """What is kept of one parameter, as an object."""

    def __init__(self, like):
        self.basis, self.kind, self.seen = torch.eye(like.shape[-1]), Norm.PLAIN, 0


class _Descent(torch.optim.Optimizer):
    def __init__(self, parameters, **settings):
        super().__init__(parameters, {"lr": 0.1, **settings})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                change = self.change(parameter.grad, self.state[parameter])
                parameter.sub_(change, alpha=group["lr"])

    def change(self, gradient, kept):
        raise NotImplementedError


class Counts(_Descent):
    """MADGRAD counts its steps like this."""

    def change(self, gradient, kept):
        if "k" not in self.state:
            self.state["k"] = torch.zeros(1)
        self.state["k"] += 1
        return gradient / self.state["k"].sqrt()


class NotesNumbers(_Descent):
    """Ranger21 has its learning rate in an attribute."""

    numbers = itertools.count()

    def __init__(self, parameters):
        super().__init__(parameters)
        self.current_lr, self.number = 1.0, next(self.numbers)

    def change(self, gradient, kept):
        self.current_lr *= 0.9
        self.last = self.current_lr
        return gradient * self.current_lr


class Quantizes(_Descent):
    """torchao has its moments in eight bits."""

    def change(self, gradient, kept):
        if "moment" not in kept:
            codes = torch.zeros(gradient.shape, dtype=torch.int8)
            kept["moment"] = Codes(codes, torch.zeros(()))
        moment = kept["moment"].value() * 0.9 + gradient
        kept["moment"].set(moment)
        return moment


class Projects(_Descent):
    """GaLore has objects."""

    def __init__(self, parameters):
        super().__init__(parameters, norm=Norm.SIGN, kind=torch.float32, on=torch.relu)

    def change(self, gradient, kept):
        held = kept.setdefault("projection", Projection(gradient))
        held.seen += 1
        held.basis = held.basis * 0.9 + 0.01 * held.seen
        return gradient @ held.basis if gradient.ndim == 2 else gradient * held.basis.mean()


class Queues(_Descent):
    """AdaShift has a queue of gradients."""

    def change(self, gradient, kept):
        held = kept.setdefault("queue", collections.deque(maxlen=3))
        held.append(gradient.clone())
        return sum(held)


class Lists(_Descent):
    """A list of a class of its own is a list."""

    class Last(list):
        pass

    def change(self, gradient, kept):
        held = kept.setdefault("last", self.Last())
        held.append(gradient.clone())
        del held[:-2]
        return sum(held)


class Slow(torch.optim.Optimizer):
    """Lookahead has an optimizer of its own, and weights."""

    def __init__(self, parameters):
        self.fast = torch.optim.Adam(parameters, lr=0.1)
        super().__init__(self.fast.param_groups, {})
        self.param_groups = self.fast.param_groups
        self.count = 0

    def zero_grad(self, set_to_none=True):
        self.fast.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        self.fast.step()
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", parameter.clone())
                if self.count % 4 == 0:
                    parameter.copy_(slow.lerp_(parameter, 0.5))


class Schedule:
    """A plain object around an optimizer, as programs with a warm-up have one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        self.optimizer.step()


class Schedules:
    """An object around no optimizer."""

    def step(self) -> None: ...


def test_an_object_around_an_optimizer_stands_for_it() -> None:
    first, second = (torch.optim.SGD([torch.zeros(1)], 0.1) for _ in range(2))
    assert optimizers_in(first) == [first]
    assert optimizers_in(Schedule(first)) == [first]
    assert optimizers_in([Schedule(first), second]) == [first, second]
    assert optimizers_in([]) == []
    with pytest.raises(ConfigError, match="a Schedules is no"):
        optimizers_in(Schedules())


KINDS = [Counts, NotesNumbers, Quantizes, Projects, Queues, Lists, Slow]


class Program:
    def __init__(self, kind):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
        self.optimizer = kind(self.model.parameters())
        self.state = TrainingState(models=[self.model], optimizers=[self.optimizer], others={})

    def step(self, at):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(at))
        self.optimizer.zero_grad()
        (self.model(x) - x).pow(2).mean().backward()
        self.optimizer.step()


def sent(tree):
    """As another process has it."""
    skeleton, tensors = encode(tree)
    return decode(json.loads(json.dumps(skeleton)), [tensor.clone() for _, tensor in tensors])


@pytest.mark.parametrize("kind", KINDS)
class TestHandOver:
    @pytest.fixture(autouse=True)
    def programs(self, kind):
        self.here, self.there = Program(kind), Program(kind)
        for at in range(7):
            self.here.step(at)
        for at in range(100, 103):
            self.there.step(at)

    def go_on(self, one, other):
        for at in range(20, 30):
            one.step(at)
            other.step(at)
        for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert one.state.digest() == other.state.digest()

    def test_all_of_it(self):
        check_state(self.here.state)
        self.there.state.load(sent(self.here.state.tree()))
        self.go_on(self.here, self.there)

    def test_a_step_that_is_taken_back(self):
        calm, kept = self.here, self.there
        kept.state.load(sent(calm.state.tree()))
        before = sent(kept.state.large())
        for at in (50, 51):
            kept.step(at)
        kept.state.load_large(before)
        self.go_on(calm, kept)

    def test_nothing_of_it_is_hidden(self):
        found = []
        for at in range(10, 12):
            self.here.step(at)
            found.append(_hidden_in(self.here.optimizer, frozenset()))
        assert found[0] == found[1]


class TestNumbers:
    def test_what_never_changes_is_each_ranks_own(self):
        here, there = Program(NotesNumbers), Program(NotesNumbers)
        here.step(0)
        there.state.load(sent(here.state.tree()))
        assert there.optimizer.number == here.optimizer.number + 1
        assert there.optimizer.current_lr == here.optimizer.current_lr

    def test_before_they_changed_they_were_what_they_were_at_first(self):
        here = Program(NotesNumbers)
        before = sent(here.state.large())
        here.step(0)
        here.state.load_large(before)
        assert here.optimizer.current_lr == 1.0
        assert not hasattr(here.optimizer, "last")


class TestRefused:
    def test_constants_that_change(self):
        here = Program(Projects)
        before = _hidden_in(here.optimizer, frozenset())
        here.optimizer.param_groups[0]["norm"] = Norm.PLAIN
        assert _hidden_in(here.optimizer, frozenset()) != before

    def test_a_quantized_tensor_that_is_not_here(self):
        here, there = Program(Quantizes), Program(Quantizes)
        here.step(0)
        with pytest.raises(ProtocolError, match="'moment' as a tensor made of codes, scale"):
            there.state.load(sent(here.state.tree()))

    def test_a_quantized_tensor_that_has_another_shape_here(self):
        here, there = Program(Quantizes), Program(Quantizes)
        here.step(0)
        there.step(0)
        weight = there.model[0].weight
        kept = there.optimizer.state[weight]
        kept["moment"] = Codes(torch.zeros(3, dtype=torch.int8), torch.zeros(()))
        with pytest.raises(ProtocolError, match="and has another Codes here"):
            there.state.load(sent(here.state.tree()))

    def test_state_that_is_sharded_over_ranks(self):
        model = nn.Linear(2, 2)
        outer = torch.optim.SGD(model.parameters(), lr=0.1)
        outer.optim = torch.optim.Adam([model.weight])
        with pytest.raises(ConfigError, match=r"SGD keeps its state in a Adam .* FSDP2"):
            TrainingState(models=[model], optimizers=[outer], others={})


def test_an_inner_optimizer_is_known_once():
    here = Program(Slow)
    assert here.state.optimizers == (here.optimizer, here.optimizer.fast)
    both = [here.optimizer, here.optimizer.fast]
    again = TrainingState(models=[here.model], optimizers=both, others={})
    assert again.optimizers == here.state.optimizers
