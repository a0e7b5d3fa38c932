"""The policy: everything that an operator can declare about who moves, when, and how often."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from trainmover.job.policies import AutomationMode, OnWorkerCrash, WhenExhausted
from trainmover.job.topology import Frozen
from trainmover.policy.hours import window

__all__ = [
    "DEATH",
    "REBALANCE",
    "SLOWEST",
    "TOPOLOGY",
    "Decision",
    "Policy",
    "Rebalance",
    "Rule",
    "Seconds",
    "seconds",
]

Decision = Literal["act", "wait", "ignore"]
"""What becomes of an incident: it is acted on, an operator is asked, or nothing."""

DEATH: Final = "machine_failed"
"""The kind of an incident that is evidence of death. No rule is asked about it."""

SLOWEST: Final = "slowest"
"""The kind of an incident that names the slowest machine of an interval. It moves nobody unless
``rebalance`` is declared."""

REBALANCE: Final = "rebalance: "
"""How the cause of a move begins that exchanges such a machine; the finding's sentence follows."""

TOPOLOGY: Final = ("rail", "leaf", "rack", "pod", "zone")
"""Levels that clusters commonly have; those that no machine has a label for do not matter."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def seconds(value: object) -> object:
    """``90``, ``90s``, ``1h30m`` in seconds."""
    if not isinstance(value, str):
        return value
    text = value.replace(" ", "")
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{value!r} is no duration: write for instance 90s, 5m or 1h30m") from None


def share(value: object) -> object:
    """``0.03`` and ``3%`` as a part of one."""
    if not isinstance(value, str):
        return value
    text = value.replace(" ", "")
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{value!r} is no share: write for instance 3% or 0.03") from None


def _interval(value: object) -> object:
    """``10m`` alone says how often; ``off`` says never."""
    if not isinstance(value, str):
        return value
    return None if value.strip() == "off" else {"every_s": value}


def _listed(value: object) -> object:
    """One word, or several with commas between them, as a list."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _alone(value: object) -> object:
    """One text as a list; commas belong to it."""
    return (value,) if isinstance(value, str) else value


Seconds = Annotated[
    float, BeforeValidator(seconds), Field(ge=0, le=1e9, allow_inf_nan=False, examples=["90s"])
]
Words = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Count = Annotated[int, Field(ge=0, examples=["2"])]
Share = Annotated[float, BeforeValidator(share), Field(gt=0, le=0.5, allow_inf_nan=False)]


class Rebalance(Frozen):
    """Every so often the slowest machine is exchanged for a better standby, where that pays.

    Attributes:
        every_s: How often, and over how long machines are measured for it.
        at_most: Machines that are exchanged within that time.
        least: How late a machine has to be next to the others, and how much less late the standby
            where that is known, as a share of a step.
    """

    every_s: Seconds = Field(default=600.0, ge=1, examples=["10m"])
    at_most: int = Field(default=1, ge=1, le=64, examples=["1"])
    least: Share = Field(default=0.03, examples=["3%"])


class Rule(Frozen):
    """Which incidents are acted on, wait for approval, or are ignored.

    The first rule whose conditions all hold decides. Times are UTC.

    Attributes:
        name: What explanations call it.
        kind: Kinds of incident; empty: every one.
        detector: Names of detectors; empty: every one.
        labels: Labels of the machine: for each name the values that count.
        hours: Times of the week at which the rule counts; empty: always.
        then: What becomes of the incident.
        votes: How many detectors must find something wrong with the machine before it is acted
            on; of those in ``detector`` where it names any.
        dwell_s: How long the incident must have been open by then.
        settle_s: A finding about the same machine that comes back within so long goes on where it
            was: the dwell does not begin anew.
    """

    name: str = Field(default="", max_length=80, examples=["nights"])
    kind: Words = ()
    detector: Words = ()
    labels: Mapping[str, Annotated[Words, Field(min_length=1)]] = Field(
        default_factory=dict, examples=["{rack: r12}"]
    )
    hours: Annotated[tuple[str, ...], BeforeValidator(_alone)] = ()
    then: Decision
    votes: int = Field(default=1, ge=1, le=100, examples=["2"])
    dwell_s: Seconds = 0.0
    settle_s: Seconds = 0.0

    @field_validator("hours")
    @classmethod
    def _are_windows(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            window(text)
        return value

    @field_validator("kind")
    @classmethod
    def _is_no_death(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if DEATH in value:
            raise ValueError(
                f"{DEATH} is evidence of death, and such a machine is always replaced: leave it out"
            )
        return value

    @model_validator(mode="after")
    def _can_come_true(self) -> Self:
        if self.detector and self.votes > len(set(self.detector)):
            raise ValueError(
                f"{self.votes} votes of {len(set(self.detector))} detectors can never be: "
                "ask for fewer, or name more detectors"
            )
        return self


class Policy(Frozen):
    """Everything that an operator can declare; durations in seconds.

    Attributes:
        automation: What is done about stragglers, until an operator says otherwise: the most that
            a rule may do.
        keep_reserve: Standbys that an automatic planned move must leave for crashes.
        cooldown_s: Pause between automatic moves of the same slot.
        horizon_s: For how long a slow machine would stay slow: a straggler is moved where that
            costs more than the pause of its move.
        rebalance: How often the slowest machine is exchanged for a better standby; None: never.
        moves_per_hour: Machines that policy may move by itself within an hour; None: no limit.
        moves_per_hour_by: The same for each value of a label of the machine: ``{rack: 2}``.
        rules: The first that matches decides what becomes of an incident; where none does, it is
            acted on.
        topology: Labels that say where a machine is, the nearest level first.
        fence_budget: Machines ended within an hour because a detector advises it, where that is no
            evidence of death.
        fence_votes: Detectors that have to agree on it.
        fence_confidence: How sure a finding has to be for it, 0 to 1.
        when_exhausted: What becomes of a job that no machine is left for.
        exhausted_after_s: How long such a job is held before it ends, unless ``hold``.
        checkpoint_deadline_s: How long its ranks may then take to save a checkpoint.
        on_worker_crash: Whether a standby replaces a machine whose program crashed, or the same
            machine starts over in its slot.
        restart_within_s: How long to wait for it then, before a standby takes the slot.
        form_quiet_s: The job forms when no machine registered for this long.
        prepare_deadline_s: Longest phase 1 of a planned move.
        ready_deadline_s: Longest wait for the vote after it.
        switch_deadline_s: Longest switch or recovery, without what its ranks do in their programs.
        truth_s: How long a recovery waits to learn whether a planned move had switched.
        regroup_s: How long broken steps without a culprit are left alone.
        max_attempts: Recovery plans in a row before the job is given up.
    """

    automation: AutomationMode = "automatic"
    keep_reserve: Count = 0
    cooldown_s: Seconds = 30.0
    horizon_s: Seconds = 3_600.0
    rebalance: Annotated[Rebalance | None, BeforeValidator(_interval)] = Field(
        default=None, examples=["{every: 10m, at_most: 1, least: 3%}"]
    )
    moves_per_hour: Count | None = Field(default=None, examples=["6"])
    moves_per_hour_by: Mapping[str, Count] = Field(default_factory=dict, examples=["{rack: 2}"])
    rules: tuple[Rule, ...] = Field(default=(), max_length=200)
    topology: Words = TOPOLOGY
    fence_budget: Count = 60
    fence_votes: int = Field(default=1, ge=1, examples=["2"])
    fence_confidence: float = Field(default=0.8, ge=0, le=1, examples=["0.8"])
    when_exhausted: WhenExhausted = "hold"
    exhausted_after_s: Seconds = 60.0
    checkpoint_deadline_s: Seconds = 60.0
    on_worker_crash: OnWorkerCrash = "standby"
    restart_within_s: Seconds = 60.0
    form_quiet_s: Seconds = 2.0
    prepare_deadline_s: Seconds = 600.0
    ready_deadline_s: Seconds = 600.0
    switch_deadline_s: Seconds = 120.0
    truth_s: Seconds = 1.0
    regroup_s: Seconds = 1.5
    max_attempts: int = Field(default=8, ge=1, examples=["8"])

    @field_validator("rules")
    @classmethod
    def _have_names(cls, value: tuple[Rule, ...]) -> tuple[Rule, ...]:
        named = tuple(
            rule if rule.name else rule.model_copy(update={"name": f"rule {number}"})
            for number, rule in enumerate(value, start=1)
        )
        names = [rule.name for rule in named]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two rules are called {twice[0]!r}: give each its own name")
        return named


def example_of(model: type[Frozen], name: str) -> Any:
    """How a field may be written, or None."""
    info = model.model_fields[name]
    return next(iter(info.examples or []), None)
