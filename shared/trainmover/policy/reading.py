"""A policy from YAML. What is wrong is told with the line of the file and the cure. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from pydantic import ValidationError

from trainmover.errors import ConfigError
from trainmover.job.topology import Frozen
from trainmover.policy.model import Policy, Rebalance, Rule, example_of

__all__ = ["MOST_BYTES", "File", "PolicyError", "Problem", "declared", "read"]

MOST_BYTES: Final = 65_536
"""A policy becomes a fact, and has to fit into a message."""

_DEEPEST: Final = 8
_Path = tuple[str | int, ...]

_SHAPES: Final = {
    "tuple_type": "a list is needed here",
    "model_type": "'key: value' lines are needed here",
    "dict_type": "'key: value' lines are needed here",
    "mapping_type": "'key: value' lines are needed here",
}
"""Pydantic speaks of Python's types; who writes a file need not know them."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a policy.

    Attributes:
        where: The file with its line, or the option.
        what: What is wrong there, and the cure.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class PolicyError(ConfigError):
    """A policy does not say what it should.

    Attributes:
        problems: All that is wrong, in the order of the lines.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def read(text: str, *, name: str, options: Mapping[str, object] | None = None) -> Policy:
    """The policy that a file says, and the command line above it.

    Args:
        text: The file's content, YAML; empty: all defaults.
        name: What messages call the file.
        options: What the command line says, by field of ``Policy``; comes before the file.

    Raises:
        PolicyError: The file or an option is wrong.
    """
    file = File(name)
    content = file.parse(text)
    given = dict(options or {})
    try:
        return Policy.model_validate({**content, **given})
    except ValidationError as error:
        problems = [
            _option_problem(one) if one["loc"][:1] and one["loc"][0] in given else file.problem(one)
            for one in error.errors(include_url=False)
        ]
        raise PolicyError(problems) from None


def declared(policy: Policy) -> dict[str, Any]:
    """The policy as a file says it, JSON-ready: ``read`` makes the same policy of it as YAML."""
    data = policy.model_dump(mode="json", exclude_none=True)
    data["rules"] = [_written(Rule, rule.model_dump(mode="json")) for rule in policy.rules]
    if policy.rebalance is not None:
        data["rebalance"] = _written(Rebalance, policy.rebalance.model_dump(mode="json"))
    return _written(Policy, data)


def _written(model: type[Frozen], data: Mapping[str, Any]) -> dict[str, Any]:
    return {_key(name): data[name] for name in model.model_fields if name in data}


def _key(field: str) -> str:
    """How a file calls a field: durations say their unit themselves."""
    return field.removesuffix("_s")


def _option_problem(error: Any) -> Problem:
    option = "--" + _key(str(error["loc"][0])).replace("_", "-")
    return Problem(option, f"{_message(error)}.")


class File:
    """A file's content as plain values, each scalar a text, and the line that each stands in.

    YAML's own idea of what a text means is not asked: ``no`` may be a zone and ``22:00`` a time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: dict[_Path, int] = {}
        self._problems: list[Problem] = []

    def parse(self, text: str) -> dict[str, Any]:
        """The content, by field of ``Policy``.

        Raises:
            PolicyError: It is no YAML, has unknown keys, or one twice.
        """
        content = self.fields(
            Policy,
            self.content(
                text, "a policy is a list of 'key: value' lines, for instance 'automation: ...'"
            ),
            (),
        )
        rules = content.get("rules")
        if isinstance(rules, list):
            content["rules"] = [
                self.fields(Rule, rule, ("rules", at)) if isinstance(rule, dict) else rule
                for at, rule in enumerate(rules)
            ]
        rebalance = content.get("rebalance")
        if isinstance(rebalance, dict):
            content["rebalance"] = self.fields(Rebalance, rebalance, ("rebalance",))
        self.check()
        return content

    def check(self) -> None:
        """Tell of the keys that are wrong.

        Raises:
            PolicyError: There are some.
        """
        if self._problems:
            raise PolicyError(self._problems)

    def content(self, text: str, otherwise: str) -> dict[str, Any]:
        """The keys and values of a text.

        Args:
            text: YAML.
            otherwise: What is said where it has no keys.

        Raises:
            PolicyError: It is no YAML, or something else than keys and values.
        """
        size = len(text.encode())
        if size > MOST_BYTES:
            self._stop(1, f"the file has {size} bytes; {MOST_BYTES} are possible. Shorten it.")
        try:
            root = yaml.compose(text, Loader=yaml.BaseLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = 1 if mark is None else mark.line + 1
            self._stop(line, f"this is no YAML: {error.problem or error.context}.")
        except yaml.YAMLError as error:
            self._stop(1, f"this is no YAML: {str(error).splitlines()[0]}.")
        except RecursionError:
            self._stop(1, "this is nested too deeply.")
        if root is None:
            return {}
        if not isinstance(root, yaml.MappingNode):
            self._stop(1, otherwise)
        content = self._value(root, (), seen=set())
        assert isinstance(content, dict)  # noqa: S101 - of a mapping node
        return content

    def problem(self, error: Any) -> Problem:
        """One of pydantic's errors, at its line."""
        path: _Path = tuple(error["loc"])
        known = path
        while known and known not in self._lines:
            known = known[:-1]
        words = [f"rule {part + 1}" if isinstance(part, int) else _key(part) for part in path]
        if words[:1] == ["rules"] and len(words) > 1:
            words = words[1:]
        where = ", ".join(words)
        return Problem(
            f"{self._name}:{self._lines.get(known, 1)}",
            f"{where}: {_message(error)}.{_example(path, error['type'])}"
            if where
            else f"{_message(error)}.",
        )

    def _value(self, node: yaml.Node, path: _Path, *, seen: set[int]) -> Any:
        line = node.start_mark.line + 1
        self._lines.setdefault(path, line)
        if id(node) in seen:
            self._stop(line, "anchors and aliases are not read here. Write it out.")
        if len(path) > _DEEPEST:
            self._stop(line, "this is nested too deeply.")
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            return node.value
        if isinstance(node, yaml.SequenceNode):
            return [self._value(one, (*path, at), seen=seen) for at, one in enumerate(node.value)]
        content: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._stop(line, "a key is one word.")
            if key.value in content:
                self._problems.append(
                    self._at(line, f"{key.value!r} is said twice. Remove one of the two.")
                )
            self._lines[(*path, key.value)] = line
            content[key.value] = self._value(value, (*path, key.value), seen=seen)
        return content

    def fields(self, model: type[Frozen], content: dict[str, Any], path: _Path) -> dict[str, Any]:
        """Keys as the file says them become fields; those that are none are told."""
        fields = {_key(name): name for name in model.model_fields}
        found: dict[str, Any] = {}
        for key, value in content.items():
            line = self._lines[(*path, key)]
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=1)
                cure = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(fields)}."
                self._problems.append(self._at(line, f"there is no {key!r} here. {cure}"))
                continue
            found[fields[key]] = value
            for known, at in list(self._lines.items()):
                if known[: len(path) + 1] == (*path, key):
                    self._lines[(*path, fields[key], *known[len(path) + 1 :])] = at
        return found

    def _at(self, line: int, what: str) -> Problem:
        return Problem(f"{self._name}:{line}", what)

    def _stop(self, line: int, what: str) -> Any:
        raise PolicyError([*self._problems, self._at(line, what)])


def _message(error: Any) -> str:
    """Pydantic's message, with what was said."""
    words = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        return "this has to be said"
    if error["type"] in ("tuple_type", "model_type", "dict_type", "mapping_type"):
        return _SHAPES[error["type"]]
    if error["type"] == "value_error" or not isinstance(error.get("input"), str | int | float):
        return words
    return f"{words}, not {error['input']!r}"


def _example(path: _Path, kind: str) -> str:
    """How the field may be written, where that is not in the message."""
    if kind in ("value_error", "literal_error"):
        return ""
    model: type[Frozen] = Policy
    if path[:1] == ("rules",):
        model, path = Rule, path[2:]
    if not path or path[0] not in model.model_fields:
        return ""
    found = example_of(model, str(path[0]))
    return "" if found is None else f" Write for instance '{_key(str(path[0]))}: {found}'."
