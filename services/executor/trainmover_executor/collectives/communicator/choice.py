"""Which communicator the groups of this process use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trainmover.errors import ConfigError
from trainmover_executor.collectives.communicator.base import Communicator
from trainmover_executor.collectives.linked.communicator import LinkCommunicator
from trainmover_executor.collectives.linked.store import Rendezvous
from trainmover_executor.collectives.native.group import NativeGroup
from trainmover_executor.collectives.native.hierarchical import Grid, HierarchicalCommunicator
from trainmover_executor.collectives.native.library import Gloo, Library, Nccl
from trainmover_executor.collectives.native.native import NativeCommunicator

__all__ = ["COMMUNICATOR_VARIABLE", "Choice", "choice_of"]

COMMUNICATOR_VARIABLE: Final = "TRAINMOVER_COMMUNICATOR"

Choice = Callable[[LinkCommunicator], tuple[Communicator, list[LinkCommunicator]]]
"""From a group's links: what carries its operations, and what counts messages of an epoch."""


def _linked(links: LinkCommunicator) -> tuple[Communicator, list[LinkCommunicator]]:
    return links, [links]


def _native(library: Library) -> Choice:
    def choose(links: LinkCommunicator) -> tuple[Communicator, list[LinkCommunicator]]:
        rendezvous = Rendezvous(links)
        group = NativeGroup(rendezvous, library=library, members=range(len(links.ranks)))
        return NativeCommunicator(group), [rendezvous]

    return choose


def _hierarchical(library: Library) -> Choice:
    def choose(links: LinkCommunicator) -> tuple[Communicator, list[LinkCommunicator]]:
        grid = Grid.of(links.table.membership.layout, links.ranks)
        if grid is None:
            return _linked(links)
        communicator = HierarchicalCommunicator(links, library=library, grid=grid)
        return communicator, [communicator, communicator.rendezvous]

    return choose


_CHOICES: Final[Mapping[str, Callable[[], Choice]]] = {
    "link": lambda: _linked,
    "gloo": lambda: _native(Gloo()),
    "hierarchical-gloo": lambda: _hierarchical(Gloo()),
    "hierarchical-nccl": lambda: _hierarchical(Nccl()),
}


def choice_of(environment: Mapping[str, str]) -> Choice:
    """What ``TRAINMOVER_COMMUNICATOR`` says; links when it is not set.

    Raises:
        ConfigError: There is no such communicator, or torch was built without it.
    """
    name = environment.get(COMMUNICATOR_VARIABLE, "link")
    if name not in _CHOICES:
        raise ConfigError(
            f"{COMMUNICATOR_VARIABLE}={name!r} is not a communicator; use one of "
            f"{', '.join(_CHOICES)}."
        )
    return _CHOICES[name]()
