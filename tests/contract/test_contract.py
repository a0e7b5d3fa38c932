"""The contract as documents: committed, current, valid; what was released stays readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError
from pydantic_asyncapi.v3 import AsyncAPI

from trainmover.events import CATALOG, decode
from trainmover_console.reference.events import documents, main, write

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "events"
GOLDEN = Path(__file__).parent / "golden"

Message = dict[str, Any]


def golden() -> list[Message]:
    """Every message of the corpus, which only ever grows."""
    return [
        json.loads(line)
        for file in sorted(GOLDEN.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]


def name(message: Message) -> str:
    return message["subject"].removeprefix("tm.v1.job.")


class TestDocuments:
    def test_what_is_committed_is_what_the_catalogue_says(self) -> None:
        found = {
            str(path.relative_to(COMMITTED)): path.read_text(encoding="utf-8")
            for path in COMMITTED.rglob("*")
            if path.is_file()
        }
        assert found == documents(), (
            "run: python -m trainmover_console.reference.events docs/events"
        )

    def test_writing_replaces_what_is_stale(self, tmp_path: Path) -> None:
        write(tmp_path)
        (tmp_path / "schemas" / "gone.v1.json").write_text("{}")
        (tmp_path / "asyncapi.json").write_text("{}")
        main([str(tmp_path)])
        assert not (tmp_path / "schemas" / "gone.v1.json").exists()
        assert (tmp_path / "asyncapi.json").read_text() == documents()["asyncapi.json"]

    def test_the_asyncapi_document_is_valid(self) -> None:
        document = json.loads((COMMITTED / "asyncapi.json").read_text())
        assert AsyncAPI.model_validate(document).asyncapi == "3.0.0"
        document["operations"]["send.job.formed"]["action"] = "shout"
        with pytest.raises(ValidationError):  # so the model does look
            AsyncAPI.model_validate(document)

    def test_every_reference_leads_somewhere(self) -> None:
        document = json.loads((COMMITTED / "asyncapi.json").read_text())
        targets = list(references(document))
        assert len(targets) > 4 * len(CATALOG)
        for target in targets:
            file, _, pointer = target.partition("#")
            if file:
                assert (COMMITTED / file).is_file(), target
                continue
            place: Any = document
            for part in pointer.strip("/").split("/"):
                place = place[part]

    @pytest.mark.parametrize("kind", CATALOG.values(), ids=lambda kind: kind.name)
    def test_schemas_are_schemas(self, kind: Any) -> None:
        schema = json.loads((COMMITTED / "schemas" / f"{kind.name}.v1.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == kind.schema
        assert schema["description"]


def references(node: Any) -> Any:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for each in node:
            yield from references(each)


class TestGoldenCorpus:
    def test_every_type_is_in_it(self) -> None:
        kept = {type_of(message) for message in golden()}
        assert kept == set(CATALOG), "a new type needs a line in tests/contract/golden"

    @pytest.mark.parametrize("message", golden(), ids=name)
    def test_what_was_released_is_still_read(self, message: Message) -> None:
        body = message["body"].encode()
        event = decode(message["subject"], message["headers"], body)
        assert event.type == type_of(message)
        assert event.subject == message["subject"]
        assert holds(event.payload.model_dump(mode="json"), data_of(message))

    @pytest.mark.parametrize("message", golden(), ids=name)
    def test_it_satisfies_its_schema(self, message: Message) -> None:
        kind = CATALOG[type_of(message)]
        schema = json.loads((COMMITTED / "schemas" / f"{kind.name}.v1.json").read_text())
        jsonschema.validate(data_of(message), schema, cls=jsonschema.Draft202012Validator)


def is_structured(message: Message) -> bool:
    return "Content-Type" in message["headers"]


def type_of(message: Message) -> str:
    if is_structured(message):
        return str(json.loads(message["body"])["type"])
    return str(message["headers"]["ce-type"])


def data_of(message: Message) -> Any:
    body = json.loads(message["body"])
    return body["data"] if is_structured(message) else body


def holds(whole: Any, part: Any) -> bool:
    """Whether nothing of ``part`` is lost or changed in ``whole``."""
    if isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return bool(whole == part)
