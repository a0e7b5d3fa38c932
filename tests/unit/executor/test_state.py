"""State as it travels: described without pickle, received in place, checked, put back."""

from __future__ import annotations

import collections
import json
import math
import random
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fabric import everywhere, shared_pair, socket_pair
from torch import nn

from trainmover.errors import ConfigError, ProtocolError
from trainmover_executor.links.link import Link, LinkBrokenError
from trainmover_executor.links.shared_memory.slots import SlotRing
from trainmover_executor.moves.private_state import open_private_state
from trainmover_executor.state.handing_over import transfer
from trainmover_executor.state.handing_over.transfer import (
    StateCorruptError,
    live_tensors,
    receive_tree,
    send_tree,
)
from trainmover_executor.state.packing.checksum import Checksum, checksum_of
from trainmover_executor.state.packing.codec import (
    StateNotPortableError,
    TensorSpec,
    decode,
    encode,
)
from trainmover_executor.state.packing.portable import pack_tree
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.rng import capture_rng, restore_rng
from trainmover_executor.state.training import TrainingState

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=20)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)


class TestCodec:
    @settings(deadline=None)
    @given(TREES)
    def test_every_tree_comes_back_as_it_was(self, tree):
        skeleton, tensors = encode(tree)
        back = decode(json.loads(json.dumps(skeleton)), [tensor for _, tensor in tensors])
        assert back == tree
        assert repr(back) == repr(tree)  # tuples stay tuples, 1 stays 1, -0.0 stays -0.0

    def test_tensors_arrays_and_counters_come_back(self):
        tree = {
            "t": torch.randn(2, 3),
            "bf16": torch.ones(2, dtype=torch.bfloat16),
            "n": np.arange(3),
            "c": collections.Counter("aab"),
            "inf": math.inf,
        }
        skeleton, tensors = encode(tree)
        back = decode(json.loads(json.dumps(skeleton)), [tensor.clone() for _, tensor in tensors])
        assert torch.equal(back["t"], tree["t"])
        assert back["bf16"].dtype == torch.bfloat16
        assert np.array_equal(back["n"], tree["n"])
        assert back["c"] == tree["c"]
        assert type(back["c"]) is collections.Counter
        assert back["inf"] == math.inf

    def test_what_would_need_pickle_is_named_with_its_place(self):
        with pytest.raises(
            StateNotPortableError, match=r"state at /scheduler/fn is a builtins\.func"
        ):
            encode({"scheduler": {"fn": lambda: None}})

    @pytest.mark.parametrize(
        "value", [["p", "float32", [-1]], ["p", "object", [1]], ["p", "int8", [2**50]], 7, ["p"]]
    )
    def test_a_broken_peer_cannot_describe_anything_it_likes(self, value):
        with pytest.raises((ValueError, TypeError)):
            TensorSpec.from_json(value)

    @pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff{}", b"\x02\0\0\0[]", b"\x02\0\0\0{}"])
    def test_broken_private_state_is_an_error(self, data):
        with pytest.raises(ProtocolError, match="does not parse"):
            open_private_state(data)

    def test_private_state_comes_back(self):
        content = {"rng": torch.arange(5), "feed": {"epoch": 1, "start": None}}
        back = open_private_state(pack_tree({"step": 3, "content": content}))
        assert torch.equal(back["rng"], content["rng"])
        assert back["feed"] == content["feed"]


@pytest.mark.parametrize(
    "numbers",
    [
        [math.inf, -0.0, 0.1, math.nan] * 40,
        [*range(-100, 100), 2**63 - 1, -(2**63)],
        [*range(100), 2**63],
        [1] * 99 + [1.0],
        [True] * 99 + [1],
    ],
)
def test_long_lists_of_numbers_come_back_as_they_were(numbers: list[float]) -> None:
    skeleton, tensors = encode({"losses": numbers})
    back = decode(json.loads(json.dumps(skeleton)), [tensor for _, tensor in tensors])["losses"]
    assert [(type(each), repr(each)) for each in back] == [
        (type(each), repr(each)) for each in numbers
    ]


def test_random_generators_are_put_back_exactly():
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    random.gauss(0, 1), np.random.standard_normal()  # both keep a spare value
    kept = capture_rng()
    skeleton, tensors = encode(kept)
    portable = decode(json.loads(json.dumps(skeleton)), [tensor.clone() for _, tensor in tensors])

    def draw():
        return random.gauss(0, 1), np.random.standard_normal(), torch.rand(3).tolist()

    expected = draw()
    restore_rng(portable)
    assert draw() == expected


def test_half_a_state_of_generators_is_refused():
    host = capture_rng()["host"]
    before = random.getstate()
    for size in (0, 9, len(host) - 1):
        with pytest.raises(ProtocolError, match="random generators"):
            restore_rng({"host": host[:size]})
    assert random.getstate() == before


def program(*, steps: int, optimizer=torch.optim.AdamW, **options) -> TrainingState:
    torch.manual_seed(steps)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.register_buffer("empty", torch.empty(0, dtype=torch.uint8))
    trained = optimizer(model.parameters(), lr=0.1, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(trained, step_size=2)
    for _ in range(steps):
        model(torch.randn(8, 4)).sum().backward()
        trained.step()
        scheduler.step()
    return TrainingState(models=[model], optimizers=[trained], others={"scheduler": scheduler})


def large(*, seed: int) -> TrainingState:
    """Tensors of a few bytes, of several slots of shared memory, and of no whole word."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1031, 1279), nn.Linear(3, 5), nn.LayerNorm(70_001))
    model.register_buffer("odd", torch.randint(256, (300_007,), dtype=torch.uint8))
    trained = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    trained.step()
    return TrainingState(models=[model], optimizers=[trained], others={})


def hand_over(giver: TrainingState, taker: TrainingState, *, pair=socket_pair, link_of=Link):
    one, other = pair()
    links = [link_of(one, peer=1, group="s"), Link(other, peer=0, group="s")]

    def act(rank, link):
        try:
            if rank == 0:
                return send_tree(link, {"state": giver.tree()}, epoch=3)
            tree, received = receive_tree(
                link, epoch=3, live=live_tensors({"state": taker.tree()}), first_timeout_s=5
            )
        except (StateCorruptError, LinkBrokenError) as error:
            return error
        taker.load(tree["state"])
        return received

    try:
        return everywhere(links, act)
    finally:
        for link in links:
            link.close()


class TestChecksum:
    @staticmethod
    def over(data: bytes, *reached: int) -> int:
        if not reached:
            return checksum_of(memoryview(data))
        checksum = Checksum()
        checksum.begin(memoryview(data))
        for count in (*reached, len(data)):
            checksum.reached(count)
        return checksum.value

    @given(st.lists(st.integers(min_value=0, max_value=1_000_003)))
    def test_it_does_not_depend_on_how_the_bytes_come(self, counts):
        data = bytes(range(251)) * 3985
        assert self.over(data, *sorted(min(c, len(data)) for c in counts)) == self.over(data)

    @given(st.integers(min_value=0, max_value=1_000_002), st.integers(min_value=0, max_value=7))
    def test_every_bit_counts(self, at, bit):
        data = bytearray(bytes(range(251)) * 3985)[:1_000_003]
        before = self.over(bytes(data))
        data[at] ^= 1 << bit
        assert self.over(bytes(data)) != before

    def test_blocks_that_changed_places_are_noticed(self):
        one, other = bytes([1]) * 262_144, bytes([2]) * 262_144
        assert self.over(one + other) != self.over(other + one)
        assert self.over(b"") != self.over(bytes(262_144)) != self.over(bytes(524_288))


class TestHandOver:
    @pytest.mark.parametrize(
        ("optimizer", "options"),
        [
            (torch.optim.AdamW, {}),
            (torch.optim.AdamW, {"amsgrad": True}),
            (torch.optim.SGD, {"momentum": 0.9}),
            (torch.optim.SGD, {}),
            (torch.optim.Adagrad, {}),
        ],
    )
    def test_the_taker_ends_bitwise_equal(self, optimizer, options):
        giver = program(steps=5, optimizer=optimizer, **options)
        taker = program(steps=3, optimizer=optimizer, **options)
        assert giver.digest() != taker.digest()
        sent, received = hand_over(giver, taker)
        assert giver.digest() == taker.digest()
        assert sent.checksum == received.checksum
        assert taker.others["scheduler"].last_epoch == 5

    def test_a_warm_taker_receives_everything_in_place(self):
        giver, taker = program(steps=5), program(steps=3)
        addresses = [p.data_ptr() for p in taker.parameters()]
        _, received = hand_over(giver, taker)
        assert received.in_place == len(encode({"state": giver.tree()})[1])
        assert [p.data_ptr() for p in taker.parameters()] == addresses

    def test_a_taker_that_never_stepped_works_too(self):
        giver, taker = program(steps=2), program(steps=0)
        hand_over(giver, taker)
        assert giver.digest() == taker.digest()

    def test_programs_that_differ_are_told_apart(self):
        giver, taker = program(steps=2), program(steps=2)
        taker.models = (nn.Linear(4, 4),)
        with pytest.raises(ConfigError, match=r"the models differ: parameters \['0\.bias'"):
            taker.load(giver.tree())

    @pytest.mark.parametrize("pair", [socket_pair, shared_pair])
    def test_tensors_of_every_size_arrive_over_every_link(self, pair):
        giver, taker = large(seed=1), large(seed=2)
        sent, received = hand_over(giver, taker, pair=pair)
        assert giver.digest() == taker.digest()
        assert sent.checksum == received.checksum != 0
        assert sent.nbytes == received.nbytes == sum(s.nbytes for s, _ in encode(giver.tree())[1])
        assert received.in_place == len(encode(giver.tree())[1])

    def test_neither_side_needs_memory_for_the_state(self):
        giver, taker = large(seed=1), large(seed=2)
        tracemalloc.start()
        try:
            sent, _ = hand_over(giver, taker, pair=shared_pair)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < sent.nbytes / 4  # a few bundles of small tensors, and what describes it all

    def test_a_damaged_description_is_noticed_before_it_is_believed(self):
        class Damages(Link):
            def send_some(self, data):
                if (at := bytes(data).find(b"momentum")) > 0:
                    data = memoryview(bytearray(data))
                    data[at] ^= 1
                return super().send_some(data)

        giver = program(steps=2, optimizer=torch.optim.SGD)
        taker = program(steps=2, optimizer=torch.optim.SGD)
        before = taker.digest()
        at_giver, at_taker = hand_over(giver, taker, link_of=Damages)
        assert isinstance(at_giver, LinkBrokenError)
        assert isinstance(at_taker, StateCorruptError)
        assert taker.digest() == before

    def test_damage_on_the_way_is_noticed_by_both(self):
        noticed = []

        class Damages(Link):
            def send_some(self, data):
                if len(data) > 1_000_000 and not noticed:
                    noticed.append(data)
                    data = memoryview(bytearray(data))
                    data[777_777] ^= 16
                return super().send_some(data)

        at_giver, at_taker = hand_over(large(seed=1), large(seed=2), link_of=Damages)
        assert noticed
        assert isinstance(at_giver, StateCorruptError)
        assert isinstance(at_taker, StateCorruptError)

    def test_damage_in_shared_memory_is_noticed(self, monkeypatch):
        honest = SlotRing.take

        def damaged(ring, count):
            if (piece := honest(ring, count)) is not None and count > 1_000_000:
                piece[count - 1] ^= 1
            return piece

        monkeypatch.setattr(SlotRing, "take", damaged)
        found = hand_over(large(seed=1), large(seed=2), pair=shared_pair)
        assert [type(one) for one in found] == [StateCorruptError] * 2

    def test_what_cannot_be_handed_over_is_refused_at_once(self):
        with pytest.raises(ConfigError, match=r"'ema' .* has no"):
            TrainingState(models=[], optimizers=[], others={"ema": object()})
        with pytest.raises(ConfigError, match=r"'noise' \(Generator\) need not be passed"):
            TrainingState(models=[], optimizers=[], others={"noise": torch.Generator()})
        second = torch.optim.SGD(nn.Linear(2, 2).parameters())
        with pytest.raises(
            ConfigError, match=r"'critic' \(SGD\) is an optimizer: pass all of them"
        ):
            TrainingState(models=[], optimizers=[], others={"critic": second})


def test_what_a_model_got_later_belongs_to_its_state():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    state = TrainingState(models=[model], optimizers=[], others={})
    model.append(nn.Sequential(nn.BatchNorm1d(4), model[1]))
    assert list(map(id, state.parameters())) == list(map(id, model.parameters()))
    assert [b.data_ptr() for b in state.buffers()] == [b.data_ptr() for b in model.buffers()]


def test_gradients_of_shadow_iterations_are_dropped() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = TrainingState(models=[model], optimizers=[optimizer], others={})
    model(torch.ones(1, 2)).sum().backward()
    state.drop_gradients()
    assert state.gradients() == [None, None]


def test_settings_are_those_of_the_moment_they_were_asked_for() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(0.1))
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer),
            torch.optim.lr_scheduler.StepLR(optimizer, 3),
        ],
        milestones=[2],
    )
    scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    others = {"scheduler": scheduler, "scaler": scaler}
    state = TrainingState(models=[model], optimizers=[optimizer], others=others)
    then = state.settings()
    rates = [float(scheduler.get_last_lr()[0])]
    for _ in range(5):
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        rates.append(float(scheduler.get_last_lr()[0]))
    grown = scaler.get_scale()
    state.load_settings(then)
    assert float(optimizer.param_groups[0]["lr"]) == rates[0]
    assert scaler.get_scale() < grown
    again = [rates[0]]
    for _ in range(5):
        optimizer.step()
        scheduler.step()
        again.append(float(scheduler.get_last_lr()[0]))
    assert again == rates


def test_a_scaler_that_is_turned_off_has_nothing_to_put_back() -> None:
    model = nn.Linear(2, 2)
    others = {"scaler": torch.amp.GradScaler("cpu", enabled=False)}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = TrainingState(models=[model], optimizers=[optimizer], others=others)
    state.load_small(state.small())


def test_what_is_kept_of_a_step_is_put_back_twice() -> None:
    """LBFGS keeps lists: what was put back is changed by the next attempt, what is kept is not."""
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    batch = torch.randn(4, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = TrainingState(models=[model], optimizers=[optimizer], others={})
    start = StepStart(state)
    start.capture(1, whole=True)
    digests = []
    for _ in range(3):
        optimizer.step(closure)
        digests.append(state.digest())
        start.restore()
    assert len(set(digests)) == 1


def test_a_buffer_that_grows_is_put_back_and_handed_over() -> None:
    def state() -> TrainingState:
        net = nn.Linear(2, 2)
        net.register_buffer("memory", torch.zeros(0, 2))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        return TrainingState(models=[nn.Sequential(net)], optimizers=[optimizer], others={})

    mine, theirs = state(), state()
    start = StepStart(mine)
    net = mine.models[0][0]
    net.memory = torch.ones(2, 2)
    start.capture(0)
    net.memory = torch.cat([net.memory, torch.zeros(1, 2)])
    start.restore()
    assert torch.equal(net.memory, torch.ones(2, 2))
    theirs.load(mine.tree())
    theirs.load_rest(mine.rest())
    assert torch.equal(theirs.models[0][0].memory, torch.ones(2, 2))


class TestGradientsThatLast:
    @staticmethod
    def trained(*, set_to_none: bool) -> tuple[TrainingState, StepStart]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        state = TrainingState(models=[model], optimizers=[optimizer], others={})
        start = StepStart(state)
        for step in range(2):
            start.capture(step)
            optimizer.zero_grad(set_to_none=set_to_none)
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        return state, start

    def test_those_that_are_set_to_zero_in_place_are_told(self) -> None:
        state, _ = self.trained(set_to_none=False)
        assert state.lasting_gradients() == [True, True]

    def test_those_that_are_made_anew_are_not(self) -> None:
        state, _ = self.trained(set_to_none=True)
        assert state.lasting_gradients() is None

    def test_they_are_told_of_an_aborted_step(self) -> None:
        state, start = self.trained(set_to_none=False)
        start.restore()
        assert state.lasting_gradients() == [True, True]

    def test_a_joiner_has_zeros_in_the_memory_that_it_had(self) -> None:
        state, _ = self.trained(set_to_none=False)
        weight, bias = state.parameters()
        views, bias.grad = weight.grad, None
        state.drop_gradients(but=[True, True])
        assert weight.grad is views
        assert views is not None
        assert not views.any()
        assert bias.grad is not None
        assert not bias.grad.any()
        state.drop_gradients(but=None)
        assert weight.grad is bias.grad is None


class TestLending:
    """Memory of a GPU that the receiver reads by itself; host memory stands for it here."""

    @staticmethod
    def lent(monkeypatch, *, refused=()):
        """Have large host tensors be lent, but those whose size is in ``refused``."""
        lenders, sent = {}, []

        def lend(tensor):
            lenders[tensor.data_ptr()] = tensor
            return {"handle": "", "offset": tensor.data_ptr()}

        def take(loans):
            done = []
            for loan, target in loans:
                source = lenders[loan["offset"]]
                done.append(target.nbytes not in refused)
                if done[-1]:
                    target.copy_(source)
                    sent.append(source.nbytes)
            return done

        def tiny(tensor):
            return tensor.nbytes <= 64 * 1024

        for name, replacement in (("lend", lend), ("take", take), ("on_host", tiny)):
            monkeypatch.setattr(transfer, name, replacement)
        return sent

    def test_what_is_taken_does_not_go_over_the_link(self, monkeypatch):
        giver, taker = large(seed=1), large(seed=2)
        sent = self.lent(monkeypatch)
        said, received = hand_over(giver, taker, pair=shared_pair)
        assert taker.digest() == giver.digest()
        assert said.checksum == received.checksum
        assert received.lent == sum(sent) > 0.9 * said.nbytes

    def test_what_cannot_be_mapped_goes_over_the_link(self, monkeypatch):
        giver, taker = large(seed=1), large(seed=2)
        sent = self.lent(monkeypatch, refused={1031 * 1279 * 4})
        said, received = hand_over(giver, taker, pair=shared_pair)
        assert taker.digest() == giver.digest()
        assert said.checksum == received.checksum
        assert 0 < sum(sent) < 0.5 * said.nbytes

    def test_a_copy_that_differs_is_noticed(self, monkeypatch):
        giver, taker = large(seed=1), large(seed=2)
        self.lent(monkeypatch)
        honest = transfer.take

        def damaging(loans):
            done = honest(loans)
            loans[0][1].view(-1)[7] += 1
            return done

        monkeypatch.setattr(transfer, "take", damaging)
        outcomes = hand_over(giver, taker, pair=shared_pair)
        assert any(isinstance(each, StateCorruptError) for each in outcomes)

    @pytest.mark.parametrize("lent", [{"9999": {}}, {"-1": {}}, {"x": {}}, ["x"]])
    def test_a_loan_that_no_giver_offers_is_refused(self, lent, monkeypatch):
        state = large(seed=1)
        monkeypatch.setattr(transfer, "_loans", lambda _: lent)
        one, other = shared_pair()
        links = [Link(one, peer=1, group="s"), Link(other, peer=0, group="s")]

        def act(rank, link):
            if rank == 0:
                with pytest.raises(LinkBrokenError):
                    send_tree(link, {"state": state.tree()}, epoch=3)
            else:
                with pytest.raises(ProtocolError, match=r"lends|description"):
                    receive_tree(link, epoch=3, live={}, first_timeout_s=5)
                link.close()

        everywhere(links, act)
        links[0].close()

    def test_a_receiver_without_a_gpu_takes_no_loan(self, monkeypatch):
        giver, taker = large(seed=1), large(seed=2)
        monkeypatch.setattr(transfer, "_loans", lambda _: {0: {"handle": "zz", "offset": 0}})
        _, received = hand_over(giver, taker, pair=shared_pair)
        assert taker.digest() == giver.digest()
        assert received.lent == 0

    def test_nothing_is_lent_to_another_host(self, monkeypatch):
        giver, taker = large(seed=1), large(seed=2)
        sent = self.lent(monkeypatch)
        hand_over(giver, taker)
        assert taker.digest() == giver.digest()
        assert not sent
