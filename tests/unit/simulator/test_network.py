"""How flows meet on ports."""

from __future__ import annotations

import pytest

from trainmover.errors import ConfigError
from trainmover_simulator.network.contention import any_order, card_gbps, step_time
from trainmover_simulator.network.fabric import Fabric

LEAF = Fabric(machines=4, per_leaf=4, rails=1)
"""One leaf: no flow needs a spine."""


def test_under_one_leaf_cards_alone_decide():
    ring = range(4)
    assert card_gbps(LEAF, ring, paths="planned", seed=0) == 400
    hashed = {card_gbps(LEAF, ring, paths="hashed", seed=seed) for seed in range(50)}
    assert hashed == {200.0, 400.0}, "both flows of a connection on one port, somewhere, or nowhere"


def test_a_ring_is_as_slow_as_its_fullest_port():
    """Two leaves of two machines, one uplink of 400 Gb/s for each of their switches."""
    fabric = Fabric(machines=4, per_leaf=2, rails=2)
    assert (fabric.uplinks, fabric.uplink_gbps) == (2, 400.0)
    near, by_turns = (0, 1, 2, 3), (0, 2, 1, 3)
    assert card_gbps(fabric, near, paths="planned", seed=0) == 400
    narrow = Fabric(machines=4, per_leaf=2, rails=2, oversubscription=2)
    # One uplink of a switch: half of two cards' traffic with one crossing, of four with two.
    assert card_gbps(narrow, near, paths="planned", seed=0) == 400
    assert card_gbps(narrow, by_turns, paths="planned", seed=0) == 200


def test_what_is_inside_the_machines_is_a_limit_too():
    fabric = Fabric(machines=4, per_leaf=4, rails=1, ceiling_gbps=360)
    assert card_gbps(fabric, range(4), paths="planned", seed=0) == 360


def test_a_machine_alone_waits_for_nobody():
    assert card_gbps(Fabric(machines=1, per_leaf=4), [0], paths="hashed", seed=0) == 400


def test_the_same_seed_is_the_same_network():
    fabric = Fabric(machines=32, per_leaf=4)

    def drawn(seed):
        return card_gbps(fabric, any_order(32, seed), paths="hashed", seed=seed)

    assert [drawn(seed) for seed in range(9)] == [drawn(seed) for seed in range(9)]
    assert len({drawn(seed) for seed in range(9)}) > 1
    assert sorted(any_order(32, 1)) == list(range(32))


def test_a_step_waits_less_where_communication_is_faster():
    assert step_time(0.3, 100, 200) == pytest.approx(0.85)
    assert step_time(0.0, 100, 200) == 1


@pytest.mark.parametrize("wrong", [{"per_leaf": 0}, {"rails": -1}, {"uplink_gbps": 0.0}])
def test_what_is_no_network_is_refused(wrong):
    with pytest.raises(ConfigError, match="positive"):
        Fabric(**{"machines": 4, "per_leaf": 2, **wrong})
