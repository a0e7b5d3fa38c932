"""Finds detectors by entry point; the built-in ones come through the same door."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from trainmover.detection.guard import Guarded
from trainmover.detection.model import API_VERSION, Detector
from trainmover.errors import ConfigError, TrainMoverError

__all__ = ["GROUP", "class_of", "config_of", "find", "load", "make"]

GROUP: Final = "trainmover.detectors"

Settings = Mapping[str, Mapping[str, Any]]
"""Settings of detectors, by name."""


def find(found: Iterable[EntryPoint] | None = None) -> dict[str, EntryPoint]:
    """Registered detectors by name, sorted."""
    points = entry_points(group=GROUP) if found is None else found
    return {point.name: point for point in sorted(points, key=lambda point: point.name)}


def load(
    *,
    names: Iterable[str] | None = None,
    shadow: Iterable[str] = (),
    settings: Settings | None = None,
    found: Iterable[EntryPoint] | None = None,
) -> list[Guarded]:
    """Make one instance of each registered detector.

    One that cannot be imported or made, or was built against another version of the SDK, comes
    back quarantined with the reason.

    Args:
        names: Only these; all when omitted.
        shadow: Detectors whose findings must lead to no action.
        settings: Settings of detectors, by name.
        found: The entry points, for tests; the installed ones when omitted.

    Raises:
        ConfigError: A name is none of a registered detector: one that was to be in shadow would
            be active.
    """
    wanted, quiet = None if names is None else set(names), set(shadow)
    known = find(found)
    _expect_known(
        {"only": wanted or set(), "shadow": quiet, "settings": set(settings or {})}, known
    )
    loaded = []
    for name, point in known.items():
        if wanted is not None and name not in wanted:
            continue
        mode = "shadow" if name in quiet else "active"
        version = version_of(point)
        try:
            detector = make(class_of(point), (settings or {}).get(name, {}))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; it is named
            reason = f"{type(error).__name__}: {error}"
            loaded.append(Guarded(name, None, version, mode, quarantined=reason))
        else:
            loaded.append(Guarded(name, detector, version, mode))
    return loaded


def _expect_known(named: Mapping[str, set[str]], known: Iterable[str]) -> None:
    for where, names in named.items():
        if missing := sorted(names - set(known)):
            raise ConfigError(
                f"no detector is named {missing[0]!r} (--{where}): known are "
                f"{', '.join(known) or 'none'}. See 'trainmover detector ls'."
            )


def version_of(point: EntryPoint) -> str:
    """Version of the distribution that an entry point belongs to."""
    return point.dist.version if point.dist is not None else "1"


def class_of(point: EntryPoint) -> type[Any]:
    """The class behind an entry point, or behind a ``package.module:Name``.

    Raises:
        TrainMoverError: It was written for another version of the SDK.
    """
    kind = point.load()
    version = getattr(kind, "api_version", None)
    if version != API_VERSION:
        raise TrainMoverError(
            f"detector {point.name} speaks version {version} of the SDK, this service speaks "
            f"{API_VERSION}. Install a version of it that matches."
        )
    return kind  # type: ignore[no-any-return]


def config_of(kind: type[Any]) -> type[BaseModel] | None:
    """The class of a detector's settings, if it has any."""
    config = getattr(kind, "Config", None)
    return config if isinstance(config, type) and issubclass(config, BaseModel) else None


def make(kind: type[Any], settings: Mapping[str, Any] | None = None) -> Detector:
    """One detector.

    Raises:
        ConfigError: The settings do not fit, or it takes none.
        TrainMoverError: It lacks methods.
    """
    config = config_of(kind)
    if config is None and settings:
        raise ConfigError(f"{kind.__name__} takes no settings; remove {', '.join(settings)}.")
    try:
        detector = kind() if config is None else kind(config.model_validate(dict(settings or {})))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"setting {where} of {kind.__name__}: {first['msg']}.") from error
    if not isinstance(detector, Detector):
        raise TrainMoverError(
            f"detector {kind.__module__}:{kind.__qualname__} lacks methods of "
            "trainmover.detection.Detector"
        )
    return detector
