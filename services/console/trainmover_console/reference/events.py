"""The event contract as documents: AsyncAPI 3, a JSON schema for each payload, an index.

``python -m trainmover_console.reference.events docs/events`` writes them; a test compares what is
committed with what the catalogue says today.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel

from trainmover import subjects
from trainmover.events.catalog import CATALOG, EventType
from trainmover.events.envelope import MAX_BYTES

__all__ = ["documents", "main", "write"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_JOB: Final = {"description": "Job name: 1 to 64 letters, digits, '-' or '_'."}
_MACHINE: Final = {"description": "The machine that says it, unique in the job."}

_HEADERS: Final[dict[str, Any]] = {
    "type": "object",
    "description": (
        "CloudEvents 1.0, NATS binding, binary mode. Values are percent-encoded outside of "
        'visible ASCII, and for \'"\' and "%".'
    ),
    "required": ["ce-specversion", "ce-id", "ce-source", "ce-type", "ce-time"],
    "properties": {
        "ce-specversion": {"const": "1.0"},
        "ce-id": {"type": "string", "description": "Unique per source."},
        "ce-source": {
            "type": "string",
            "description": "/planner, /detector, or /machine/NAME.",
        },
        "ce-type": {"type": "string", "description": "Ends in the payload's major version."},
        "ce-time": {"type": "string", "format": "date-time", "description": "When it was said."},
        "ce-subject": {"type": "string", "description": "The job."},
        "ce-datacontenttype": {"const": "application/json"},
        "ce-dataschema": {"type": "string", "description": "$id of the payload's JSON schema."},
        "ce-sequence": {
            "type": "string",
            "description": "RUN.NUMBER: numbers of a run grow; gaps are normal for a filter.",
        },
        "traceparent": {"type": "string", "description": "W3C trace context."},
        "tracestate": {"type": "string"},
        "Nats-Msg-Id": {
            "type": "string",
            "description": "SOURCE#ID: stored once within ten minutes.",
        },
    },
}

_DEAD_HEADERS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["tm-kind", "tm-reason", "tm-subject", "tm-bytes"],
    "properties": {
        "tm-kind": {
            "enum": ["malformed", "foreign", "oversized", "replayed", "reordered", "refused"]
        },
        "tm-reason": {"type": "string", "description": "For people; percent-encoded."},
        "tm-subject": {"type": "string", "description": "Where the message came."},
        "tm-bytes": {"type": "string", "description": "Length of its body, in decimal."},
        "tm-sequence": {"type": "string", "description": "Its sequence in the stream."},
    },
}


def documents() -> dict[str, str]:
    """Every document of the contract: relative path -> content."""
    found = {"asyncapi.json": _json(_asyncapi()), "README.md": _index()}
    for kind in CATALOG.values():
        found[_schema_path(kind)] = _json(_schema(kind))
    return found


def write(folder: Path) -> list[Path]:
    """Write the documents and remove schemas that are no longer generated.

    Args:
        folder: Where to; made when missing.

    Returns:
        The files written.
    """
    wanted = documents()
    for stale in (folder / "schemas").glob("*.json"):
        if f"schemas/{stale.name}" not in wanted:
            stale.unlink()
    written = []
    for name, content in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        written.append(path)
    return written


def main(argv: Sequence[str] | None = None) -> None:
    """Write the documents to the folder named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m trainmover_console.reference.events")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/events"))
    write(parser.parse_args(argv).folder)


def _schema_path(kind: EventType) -> str:
    return f"schemas/{kind.name}.v1.json"


def _schema(kind: EventType) -> dict[str, Any]:
    schema = kind.model.model_json_schema(mode="serialization")
    # Writers give every field; what has a default may be missing in what an older writer said.
    schema["required"] = kind.model.model_json_schema(mode="validation").get("required", [])
    _describe(schema, kind.model)
    schema["description"] = _about(kind)
    for model in _models(kind.model):
        if (inner := schema.get("$defs", {}).get(model.__name__)) is not None:
            _describe(inner, model)
    return {"$schema": _DIALECT, "$id": kind.schema, **schema}


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Put the words of a model's docstring where readers of a schema look for them."""
    schema["description"] = _summary(model)
    words: dict[str, str] = {}
    for each in reversed(model.__mro__):
        words |= _attributes(each)
    for name, field in schema.get("properties", {}).items():
        field.pop("title", None)
        if name in words:
            field["description"] = words[name]


def _models(model: type[BaseModel]) -> set[type[BaseModel]]:
    """``model`` and every model that its fields mention."""
    found: set[type[BaseModel]] = set()
    todo: list[Any] = [model]
    while todo:
        each = todo.pop()
        if inspect.isclass(each) and issubclass(each, BaseModel) and each not in found:
            found.add(each)
            todo += [field.annotation for field in each.model_fields.values()]
        todo += get_args(each)
    return found


def _summary(model: type[BaseModel]) -> str:
    """First paragraph of a docstring, on one line."""
    return _words((inspect.getdoc(model) or "").partition("\n\n")[0])


def _about(kind: EventType) -> str:
    """What a fact says, and how long it can be read."""
    kept = "" if kind.kept_s is None else f" Kept for {kind.kept_s} s only."
    return _summary(kind.model) + kept


def _attributes(model: type) -> dict[str, str]:
    """What a docstring's own "Attributes:" says about each of them."""
    _, _, section = inspect.cleandoc(model.__dict__.get("__doc__") or "").partition("Attributes:\n")
    pieces = re.split(r"^ {4}(\w+): ", section.partition("\n\n")[0], flags=re.MULTILINE)
    return {name: _words(text) for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def _words(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _asyncapi() -> dict[str, Any]:
    kinds = list(CATALOG.values())
    channels: dict[str, Any] = {kind.name: _channel(kind) for kind in kinds}
    channels["dead"] = {
        "address": subjects.DEAD_LETTER,
        "description": "Messages that must not count, with the reason; stream TM_DEAD.",
        "messages": {"dead": {"$ref": "#/components/messages/dead"}},
    }
    operations = {f"send.{kind.name}": _operation(kind) for kind in kinds}
    operations["send.dead"] = {
        "action": "send",
        "channel": {"$ref": "#/channels/dead"},
        "summary": "Any reader that finds such a message",
    }
    messages = {kind.name: _message(kind) for kind in kinds}
    messages["dead"] = {
        "name": "dead",
        "summary": "The original message, its body cut at 64 KiB",
        "headers": _DEAD_HEADERS,
        "payload": {"description": "Whatever it was."},
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "TrainMover facts",
            "version": "1.0.0",
            "description": (
                "Everything that happens to a training job, as CloudEvents on NATS. The major "
                "version of a payload is in its type; within it fields are only added."
            ),
            "license": {
                "name": "Apache-2.0",
                "url": "https://www.apache.org/licenses/LICENSE-2.0",
            },
        },
        "defaultContentType": "application/json",
        "servers": {
            "bus": {
                "host": "localhost:4222",
                "protocol": "nats",
                "description": "NATS with JetStream; facts are stored in stream TM_EVENTS.",
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def _channel(kind: EventType) -> dict[str, Any]:
    parameters = {"job": _JOB} | ({"machine": _MACHINE} if kind.by_machines else {})
    return {
        "address": kind.template,
        "parameters": parameters,
        "messages": {kind.name: {"$ref": f"#/components/messages/{kind.name}"}},
    }


def _operation(kind: EventType) -> dict[str, Any]:
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{kind.name}"},
        "summary": f"Said by the {kind.by}",
        "messages": [{"$ref": f"#/channels/{kind.name}/messages/{kind.name}"}],
    }


def _message(kind: EventType) -> dict[str, Any]:
    return {
        "name": kind.type,
        "title": kind.name,
        "summary": _about(kind),
        "contentType": "application/json",
        "headers": _HEADERS,
        "payload": {
            "schemaFormat": "application/schema+json;version=2020-12",
            "schema": {"$ref": f"./{_schema_path(kind)}"},
        },
    }


def _index() -> str:
    lines = [
        "<!-- Made by `python -m trainmover_console.reference.events`; a test compares. -->",
        "",
        "# Event reference",
        "",
        "How to read and trust them: [events](../concepts/events.md). Machine-readable: "
        "[asyncapi.json](asyncapi.json).",
        "",
        f"The CloudEvents type is `dev.trainmover.<fact>.v1`; a payload has at most {MAX_BYTES} "
        "bytes.",
        "",
        "| fact | subject | said by | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| [`{kind.name}`]({_schema_path(kind)}) | `{kind.template}` | {kind.by} "
        f"| {_about(kind)} |"
        for kind in CATALOG.values()
    ]
    return "\n".join(lines) + "\n"


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
