"""The CloudEvents envelope: both modes, hostile input, and the round trip."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmover.errors import MalformedEventError
from trainmover.events import Envelope, decode, encode
from trainmover.events.envelope import MAX_BYTES
from trainmover.events.executor import StepProgress
from trainmover.events.machine import MachineLost
from trainmover.job.topology import Frozen

SUBJECT = "tm.v1.demo.machine.lost"
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def event(**changes) -> Envelope:
    values = {
        "id": "e-1",
        "source": "/planner",
        "job": "demo",
        "time": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "payload": MachineLost(machine="w-1", reason="silent"),
        "trace": TRACE,
    } | changes
    return Envelope(**values)


class TestBinaryMode:
    def test_the_headers_on_the_wire(self):
        headers, body = encode(event(id='é "1" %'))
        assert headers == {
            "ce-specversion": "1.0",
            "ce-id": "%C3%A9%20%221%22%20%25",
            "ce-source": "/planner",
            "ce-type": "dev.trainmover.machine.lost.v1",
            "ce-time": "2026-01-02T03:04:05.000006Z",
            "ce-subject": "demo",
            "ce-datacontenttype": "application/json",
            "ce-dataschema": "urn:trainmover:event:machine.lost:v1",
            "traceparent": TRACE["traceparent"],
        }
        assert json.loads(body) == {"machine": "w-1", "reason": "silent", "generation": None}

    def test_the_round_trip(self):
        assert decode(SUBJECT, *encode(event())) == event()

    @given(
        id=st.text(min_size=1).filter(lambda text: max(text) < "\ud800" or max(text) > "\udfff"),
        source=st.text(st.characters(codec="utf-8"), min_size=1),
        reason=st.text(st.characters(codec="utf-8")),
        moment=st.datetimes(timezones=st.just(timezone(timedelta(hours=5, minutes=30)))),
    )
    def test_any_text_survives(self, id, source, reason, moment):
        sent = event(id=id, source=source, payload=MachineLost(machine="w", reason=reason))
        headers, body = encode(sent)
        for value in headers.values():
            assert value.isascii()
            assert value.isprintable()
            assert " " not in value
        assert decode(SUBJECT, headers, body) == sent

    def test_times_are_turned_into_utc(self):
        local = datetime(2026, 1, 2, 3, 0, tzinfo=timezone(timedelta(hours=2)))
        headers, body = encode(event(time=local))
        assert headers["ce-time"] == "2026-01-02T01:00:00Z"
        assert decode(SUBJECT, headers, body).time == local

    def test_header_names_are_read_in_any_case(self):
        headers, body = encode(event())
        shouting = {name.upper(): value for name, value in headers.items()}
        assert decode(SUBJECT, shouting, body) == event()

    def test_unknown_fields_of_a_newer_writer_are_ignored(self):
        headers, body = encode(event())
        newer = json.dumps(json.loads(body) | {"rack": "r7"}).encode()
        assert decode(SUBJECT, headers | {"ce-future": "x"}, newer) == event()


class TestStructuredMode:
    def document(self, **changes):
        return {
            "specversion": "1.0",
            "id": "e-1",
            "source": "/planner",
            "type": "dev.trainmover.machine.lost.v1",
            "time": "2026-01-02T03:04:05.000006Z",
            "data": {"machine": "w-1", "reason": "silent"},
            **TRACE,
        } | changes

    @pytest.mark.parametrize(
        "content", ["application/cloudevents+json", "Application/CloudEvents+JSON; charset=utf-8"]
    )
    def test_it_is_understood(self, content):
        body = json.dumps(self.document()).encode()
        assert decode(SUBJECT, {"Content-Type": content}, body) == event()

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b"null", b'{"specversion": "1.0"}', b"[" * 100_000]
    )
    def test_garbage_is_refused(self, body):
        with pytest.raises(MalformedEventError):
            decode(SUBJECT, {"content-type": "application/cloudevents+json"}, body)


class TestMalformed:
    @pytest.mark.parametrize("name", ["specversion", "id", "source", "type", "time"])
    def test_a_missing_attribute_is_named(self, name):
        headers, body = encode(event())
        del headers[f"ce-{name}"]
        with pytest.raises(MalformedEventError, match=name):
            decode(SUBJECT, headers, body)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"ce-specversion": "0.3"}, "not a CloudEvent 1.0"),
            ({"ce-type": "dev.trainmover.machine.danced.v1"}, "not in the catalogue"),
            ({"ce-type": "dev.trainmover.machine.ready.v1"}, "belongs on"),
            ({"ce-time": "yesterday"}, "RFC 3339"),
            ({"ce-time": "2026-01-02T03:04:05"}, "no zone"),
            ({"ce-datacontenttype": "application/protobuf"}, "only JSON"),
        ],
    )
    def test_wrong_attributes(self, changes, reason):
        headers, body = encode(event())
        with pytest.raises(MalformedEventError, match=reason):
            decode(SUBJECT, headers | changes, body)

    @pytest.mark.parametrize(
        "body",
        [b"", b"\xff\xfe", b"[]", b"{}", b'{"machine": 1, "reason": "r"}', b'{"a":' * 10_000],
    )
    def test_wrong_payloads(self, body):
        headers, _ = encode(event())
        with pytest.raises(MalformedEventError, match="payload is wrong"):
            decode(SUBJECT, headers, body)

    @pytest.mark.parametrize(
        "subject",
        [
            "",
            "tm",
            "tm.v1.demo.machine.ready",
            "tm.v1.de mo.machine.lost",
            "tm.v2.demo.machine.lost",
        ],
    )
    def test_wrong_subjects(self, subject):
        with pytest.raises(MalformedEventError):
            decode(subject, *encode(event()))

    @pytest.mark.parametrize("headers", [None, {}, {"ce-": "x"}, {"ce-id": "%"}])
    def test_hardly_any_headers(self, headers):
        with pytest.raises(MalformedEventError):
            decode(SUBJECT, headers, b"{}")

    @given(st.dictionaries(st.text(), st.text()), st.binary())
    def test_nothing_else_is_ever_raised(self, headers, body):
        base, _ = encode(event())
        for mixed in (headers, base | headers):
            with pytest.raises(MalformedEventError):
                decode(SUBJECT, mixed, b"\x00" + body)


class TestStrictWriter:
    @pytest.mark.parametrize("name", ["id", "source"])
    def test_empty_attributes(self, name):
        with pytest.raises(MalformedEventError, match=name):
            encode(event(**{name: ""}))

    def test_a_class_that_is_no_event(self):
        class Stranger(Frozen):
            pass

        with pytest.raises(MalformedEventError, match="Stranger is not an event"):
            encode(event(payload=Stranger()))

    def test_a_value_that_json_cannot_hold(self):
        bad = StepProgress(machine="w", rank=0, epoch=1, step=1, step_s=float("nan"))
        with pytest.raises(MalformedEventError, match="step_s"):
            encode(event(payload=bad, source="/machine/w"))

    def test_a_machine_that_speaks_for_another(self):
        payload = StepProgress(machine="w", rank=0, epoch=1, step=1, step_s=1.0)
        with pytest.raises(MalformedEventError, match="says that it comes from '/machine/v'"):
            encode(event(payload=payload, source="/machine/v"))

    def test_a_payload_that_is_too_large(self):
        with pytest.raises(MalformedEventError, match="over the limit"):
            encode(event(payload=MachineLost(machine="w", reason="x" * MAX_BYTES)))
