"""How several jobs share the machines of a pool: one file, read by its leader and its machines.

What a machine runs for a job is in the file that lies on the machine. What comes over the bus only
names the job.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from trainmover.errors import InvalidIdError
from trainmover.job.topology import Frozen
from trainmover.policy.model import Count, Seconds
from trainmover.policy.reading import File, PolicyError
from trainmover.subjects import validate_id

__all__ = ["JobShare", "Sharing", "read_sharing"]

_OURS: Final = frozenset(
    {"--job", "--machine", "--nats", "--pool", "--host", "--label", "--log-dir", "--lent-by"}
)
"""What the machine itself says to the agent that it starts."""


def _split(value: object) -> object:
    """One text as a shell would split it."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"{error}: close what is quoted") from None


class JobShare(Frozen):
    """What one job gets of a pool, and how a machine of the pool serves it.

    Attributes:
        priority: A higher one comes first.
        wanted: Standbys that the job should have, its own ones included.
        quota: Most machines of the pool that serve it at a time, with a slot or without; None: no
            limit.
        agent: Options of ``trainmover agent``, and the program after ``--``, as the job's other
            machines are started; without what the machine says itself (job, machine, bus, address,
            labels, logs).
        env: Variables for the agent, for instance where the secret of the job's links is.
        folder: Where the agent is started; where the machine's process is, when empty.
    """

    priority: int = Field(default=0, ge=-1000, le=1000, examples=["10"])
    wanted: Count = 1
    quota: Count | None = Field(default=None, examples=["4"])
    agent: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        examples=["--slots 4 --standbys 1 -- train.py"]
    )
    env: Mapping[str, str] = Field(default_factory=dict)
    folder: str = ""

    @field_validator("agent")
    @classmethod
    def _is_an_agents(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "--" not in value or value[-1] == "--":
            raise ValueError("the program is missing: write it after --, as in '-- train.py'")
        options = value[: value.index("--")]
        for option in options:
            if option.partition("=")[0] in _OURS:
                raise ValueError(f"{option} is said by the machine itself: leave it out")
        return value


class Sharing(Frozen):
    """How several jobs share the machines of a pool.

    Attributes:
        jobs: What each job gets.
        settle_s: A standby more than a job wants is taken for another job only when it was too many
            for so long; nor is one taken back sooner because a quota is smaller now.
        silent_s: A standby whose machine says nothing for so long, while others do, is let go.
    """

    jobs: Mapping[str, JobShare] = Field(min_length=1, max_length=256)
    settle_s: Seconds = 60.0
    silent_s: Seconds = 15.0

    @model_validator(mode="after")
    def _names_jobs(self) -> Self:
        for name in self.jobs:
            try:
                validate_id(name, what="job")
            except InvalidIdError as error:
                raise ValueError(str(error)) from None
        return self


def read_sharing(text: str, *, name: str) -> Sharing:
    """What a file says.

    Args:
        text: The file's content, YAML.
        name: What messages call the file.

    Raises:
        PolicyError: It is wrong; each problem is told with its line and the cure.
    """
    file = File(name)
    content = file.content(text, "a pool is declared by 'jobs:' with one entry for each job")
    content = file.fields(Sharing, content, ())
    jobs = content.get("jobs")
    if isinstance(jobs, dict):
        content["jobs"] = {
            job: file.fields(JobShare, share, ("jobs", job)) if isinstance(share, dict) else share
            for job, share in jobs.items()
        }
    file.check()
    try:
        return Sharing.model_validate(content)
    except ValidationError as error:
        raise PolicyError(map(file.problem, error.errors(include_url=False))) from None
