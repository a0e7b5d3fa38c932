"""Every decoder and every reader of facts, fed with what makes no sense; longer by itself.

``python -m tests.hostile --seconds 600`` goes on for as long as one likes, with other inputs.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from tests.hostile.decoders import DECODERS, Decoder
from tests.hostile.readers import READERS
from tests.hostile.run import attack_decoder, attack_reader, inputs_of, stories

QUICK = settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_nothing_that_is_read_raises_what_nobody_knows(decoder: Decoder) -> None:
    for sample in decoder.samples:
        decoder.read(sample)  # else the generator tries nothing

    @QUICK
    @given(inputs_of(decoder))
    def attack(data: bytes) -> None:
        attack_decoder(decoder, data)

    attack()


@pytest.mark.parametrize("reader", READERS)
def test_no_fact_ends_who_reads_it(reader: str) -> None:
    @settings(QUICK, max_examples=60)
    @given(stories())
    def attack(lines: list[object]) -> None:
        attack_reader(reader, lines)

    attack()
