"""What the relay decides, signs and selects, without a bus or a receiver."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import factories as make

from trainmover.errors import ConfigError
from trainmover.events.machine import MachineLost
from trainmover_gateway.relay import Deliver, GiveUp, Retry, Secret, Selection, decide, request_for
from trainmover_gateway.relay.policy import ATTEMPTS, Answer

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def after(status: int, attempt: int, *, chance: float = 1.0, **headers: str):
    return decide(Answer(status, "why", headers), attempt=attempt, chance=chance, now=NOW)


class TestPolicy:
    @pytest.mark.parametrize("status", [200, 201, 202, 204])
    def test_taken(self, status):
        assert after(status, 1) == Deliver()

    @pytest.mark.parametrize("status", [0, 301, 401, 403, 404, 408, 410, 429, 500, 503])
    def test_a_receiver_in_trouble_is_waited_for_without_end(self, status):
        delays = [after(status, attempt) for attempt in (1, 2, 3, 8, 9, 1000)]
        assert delays == [Retry(0.5), Retry(1), Retry(2), Retry(60), Retry(60), Retry(60)]

    @pytest.mark.parametrize("status", [400, 413, 415, 422])
    def test_an_event_that_is_refused_for_itself_is_given_up(self, status):
        assert isinstance(after(status, ATTEMPTS - 1), Retry)
        assert after(status, ATTEMPTS) == GiveUp(f"refused {ATTEMPTS} times: why")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("7", 7),
            ("0", 0.5),
            ("Thu, 01 Jan 2026 12:00:20 GMT", 20),
            ("Thu, 01 Jan 2025 12:00:20 GMT", 0.5),
            ("999999", 600),
            ("soon", 0.5),
            ("Thu, 01 Jan 0001 00:00:00 +2359", 0.5),
            ("Fri, 31 Dec 9999 23:59:59 -2359", 600),
            ("٣", 0.5),
            ("9" * 5000, 0.5),
        ],
    )
    def test_the_receiver_may_ask_for_more_time(self, text, expected):
        assert after(429, 1, **{"retry-after": text}) == Retry(expected)

    @given(st.integers(1, 10_000), st.floats(0, 1))
    def test_delays_are_spread_and_bounded(self, attempt, chance):
        found = after(503, attempt, chance=chance)
        assert 0.25 <= found.delay_s <= 60


class TestSelection:
    def test_patterns(self):
        chosen = Selection.of(["migration.*", "incident.opened"])
        assert "migration.committed" in chosen.names
        assert "incident.closed" not in chosen.names
        assert (chosen.entity, chosen.fact) == ("*", "*")

    def test_the_server_filters_what_it_can(self):
        whole = Selection.of(["migration.*"])
        one = Selection.of(["migration.committed"])
        assert (whole.entity, whole.fact) == ("migration", "*")
        assert (one.entity, one.fact) == ("migration", "committed")

    def test_everything_without_a_pattern(self):
        assert len(Selection.of([]).names) > 30

    def test_a_typing_error_is_told(self):
        with pytest.raises(ConfigError, match=r"'migraton\.\*'.*migration\.\*"):
            Selection.of(["migraton.*"])


class TestRequests:
    def test_a_receiver_can_check_it(self):
        """As the Standard Webhooks text says, with its own words for the parts."""
        key = bytes(range(32))
        secret = Secret.parse("whsec_" + base64.b64encode(key).decode())
        event = make.said(MachineLost(machine="w-1", reason="ümlaut"), trace=make.TRACE)
        request = request_for(event, secret=secret, now=NOW)
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}."
        expected = hmac.new(key, signed.encode() + request.body, hashlib.sha256).digest()
        assert request.headers["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
        assert request.headers["webhook-timestamp"] == str(int(NOW.timestamp()))

    def test_the_body_is_a_cloudevent(self):
        event = make.said(MachineLost(machine="w-1", reason="r"), trace=make.TRACE)
        document = json.loads(request_for(event, secret=None, now=NOW).body)
        assert document["type"] == "dev.trainmover.machine.lost.v1"
        assert document["data"] == {"machine": "w-1", "reason": "r", "generation": None}
        assert document["traceparent"] == make.TRACE["traceparent"]
        assert document["time"].endswith("Z")

    def test_no_signature_without_a_secret(self):
        event = make.said(MachineLost(machine="w-1", reason="r"))
        assert "webhook-signature" not in request_for(event, secret=None, now=NOW).headers

    @pytest.mark.parametrize(
        "text", ["", "short", "x" * 40, "whsec_!!!", "whsec_é", "whsec_" + "QUJD"]
    )
    def test_bad_secrets(self, text):
        with pytest.raises(ConfigError):
            Secret.parse(text)

    def test_a_secret_is_not_shown(self):
        text = "whsec_" + base64.b64encode(b"0123456789" * 3).decode()
        assert "0123" not in repr(Secret.parse(text))

    def test_the_library_that_receivers_use_takes_it(self):
        """As advised: ``whsec_`` and the base64 of 32 bytes."""
        from standardwebhooks import Webhook

        text = "whsec_" + base64.b64encode(bytes(range(32))).decode()
        event = make.said(MachineLost(machine="w-1", reason="ümlaut"))
        request = request_for(event, secret=Secret.parse(text), now=datetime.now(UTC))
        found = Webhook(text).verify(request.body, dict(request.headers))
        assert found["data"]["machine"] == "w-1"
