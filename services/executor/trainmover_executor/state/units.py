"""The state of a rank as units: a parameter together with what its optimizer keeps of it.

A unit can be handed over alone, between two steps. From then on it is kept current by the gradients
and settings of each further step, which the joiner feeds to its own optimizer: an optimizer that
treats every element by itself comes to the same bits, whichever parameters it is given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import optim
from torch.distributed.tensor import DTensor

from trainmover.errors import ProtocolError
from trainmover_executor.state.optimizers.entries import entries_of, load_entries
from trainmover_executor.state.optimizers.unhooked import unhooked
from trainmover_executor.state.packing.checksum import sum_of_words
from trainmover_executor.state.packing.codec import TensorSpec
from trainmover_executor.state.packing.fingerprint import fingerprint_of
from trainmover_executor.state.packing.memory import bytes_of, flat_of
from trainmover_executor.state.packing.shards import like_parameter, local_of
from trainmover_executor.state.training import TrainingState

__all__ = ["ELEMENTWISE", "StateUnits", "sample_of"]

ELEMENTWISE: Final = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adagrad,
    optim.Adadelta,
    optim.RMSprop,
)
"""Optimizers that treat every element by itself."""

_SAMPLE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Unit:
    parameter: torch.Tensor
    optimizer: int | None


class StateUnits:
    """Reads and writes units of a rank's state.

    Args:
        state: The whole state; its tensors stay where they are.

    Attributes:
        names: All units, in a fixed order that is equal at leaver and joiner.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        owner = {
            id(parameter): index
            for index, optimizer in enumerate(state.optimizers)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self._units = {
            f"{index}:{name}": _Unit(parameter, owner.get(id(parameter)))
            for index, model in enumerate(state.models)
            for name, parameter in model.named_parameters()
        }
        self.names = tuple(self._units)
        self._held = [(id(each), each.shape) for each in self._held_by_optimizers()]

    def are_outdated(self) -> bool:
        """Whether the program gave the optimizers other parameters, or other shapes, since."""
        return self._held != [(id(each), each.shape) for each in self._held_by_optimizers()]

    def are_others(self) -> bool:
        """The same but for shapes, which take ten times as long: it is asked within a step."""
        return [held for held, _ in self._held] != [*map(id, self._held_by_optimizers())]

    def _held_by_optimizers(self) -> Iterator[torch.Tensor]:
        for optimizer in self._state.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def obstacle(self) -> str:
        """Why this state cannot be followed, for people; empty when it can."""
        if not self._state.optimizers:
            return "no optimizer is known that takes its steps"
        for optimizer in self._state.optimizers:
            if type(optimizer) not in ELEMENTWISE:
                return f"{type(optimizer).__name__} is not known to treat every element by itself"
        return self.log_obstacle()

    def log_obstacle(self) -> str:
        """Why its steps cannot be taken again from their gradients; empty when they can."""
        if name := self._in_two_places():
            return f"{name} has its memory in common with another parameter"
        found = map(self._obstacle_in, range(len(self._state.optimizers)))
        return next((each for each in found if each), "")

    def _obstacle_in(self, index: int) -> str:
        optimizer, others = self._state.optimizers[index], self._state.others.values()
        kind = type(optimizer).__name__
        if isinstance(optimizer, optim.LBFGS | optim.SparseAdam):
            return f"{kind} takes more than dense gradients"
        if type(optimizer) not in ELEMENTWISE and self._is_sharded(optimizer):
            return f"{kind} may communicate in its step, and its shards are on other ranks"
        if self._state.keeps_besides(index):
            return f"{kind} keeps state that belongs to no parameter"
        scaled = any(isinstance(one, torch.amp.GradScaler) and one.is_enabled() for one in others)
        if scaled and getattr(optimizer, "_step_supports_amp_scaling", False):
            return f"the gradient scaler reaches into fused {kind}"
        owners = {id(unit.parameter): unit.optimizer for unit in self._units.values()}
        held = {owners.get(id(each), -1) for g in optimizer.param_groups for each in g["params"]}
        if -1 in held:
            return f"{kind} holds parameters that belong to none of the session's models"
        is_shared = bool(held - {index})
        return f"{kind} has its parameters in common with another optimizer" if is_shared else ""

    def _in_two_places(self) -> str:
        """A parameter whose memory another one begins with, too; empty if there is none."""
        seen: set[int] = set()
        for name, unit in self._units.items():
            address = local_of(unit.parameter).data_ptr()
            if address and address in seen:
                return name
            seen.add(address)
        return ""

    @staticmethod
    def _is_sharded(optimizer: optim.Optimizer) -> bool:
        return any(
            isinstance(parameter, DTensor)
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def parameters(self) -> dict[str, torch.Tensor]:
        """All parameters, by the name of their unit."""
        return {name: unit.parameter for name, unit in self._units.items()}

    def trained(self) -> dict[str, torch.Tensor]:
        """Parameters that an optimizer holds, by the name of their unit."""
        return {
            name: unit.parameter for name, unit in self._units.items() if unit.optimizer is not None
        }

    def untrained(self) -> dict[str, tuple[int, int]]:
        """Units that no optimizer holds; for each what differs once it was written to.

        A target network's, or an average of weights. By their version and their beginning, as a
        write through ``.data`` leaves no version behind: cheap.
        """
        return {
            name: (unit.parameter._version, self.sample(name))  # noqa: SLF001 - no public name
            for name, unit in self._units.items()
            if unit.optimizer is None
        }

    def batches(self, nbytes: int) -> Iterator[tuple[str, ...]]:
        """All names, as many together as have ``nbytes`` bytes; a larger unit stands alone."""
        batch, size = list[str](), 0
        for name in self.names:
            if batch and size + self.nbytes(name) > nbytes:
                yield tuple(batch)
                batch, size = [], 0
            batch.append(name)
            size += self.nbytes(name)
        if batch:
            yield tuple(batch)

    def tree(self, name: str) -> dict[str, Any]:
        """A unit with live tensors."""
        unit = self._units[name]
        entries: Mapping[str, Any] = {}
        if unit.optimizer is not None:
            entries = entries_of(self._state.optimizers[unit.optimizer], unit.parameter)
        return {"value": local_of(unit.parameter), "entries": entries}

    @torch.no_grad()
    def load(self, name: str, tree: Mapping[str, Any]) -> None:
        """Take over what another rank's ``tree`` returned.

        Raises:
            ProtocolError: This rank has no such unit.
        """
        unit = self._unit(name)
        live = local_of(unit.parameter)
        if live.data_ptr() != tree["value"].data_ptr():
            live.copy_(tree["value"])
        if unit.optimizer is not None:
            load_entries(self._state.optimizers[unit.optimizer], unit.parameter, tree["entries"])

    def gradients(self, optimizer: int, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Local gradients of those of ``names`` that ``optimizer`` is about to use.

        Raises:
            ProtocolError: A gradient is sparse.
        """
        found = {}
        for name in self.names:
            unit = self._units[name]
            if name not in names or unit.optimizer != optimizer or unit.parameter.grad is None:
                continue
            if unit.parameter.grad.is_sparse:
                raise ProtocolError(f"the gradient of {name} is sparse")
            found[name] = local_of(unit.parameter.grad)
        return found

    def step(self, optimizer: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Take one step of ``optimizer`` with exactly these gradients, which no hook changes.

        Raises:
            ProtocolError: This rank has no such unit.
        """
        for name in self.names:
            unit = self._units[name]
            if unit.optimizer == optimizer:
                unit.parameter.grad = None
        for name, gradient in gradients.items():
            parameter = self._unit(name).parameter
            parameter.grad = like_parameter(parameter, gradient)
        with unhooked(self._state.optimizers[optimizer]):
            self._state.optimizers[optimizer].step()

    def outline(self) -> dict[str, Any]:
        """What a copy of this state elsewhere needs to know before the units come.

        For a state with a single optimizer: its class, the units of each of its groups, and name,
        dtype and shape of every unit.
        """
        (optimizer,) = self._state.optimizers
        names = {id(unit.parameter): name for name, unit in self._units.items()}
        groups = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        locals_ = {name: local_of(unit.parameter) for name, unit in self._units.items()}
        units = [
            TensorSpec(name, local.dtype, tuple(local.shape)).to_json()
            for name, local in locals_.items()
        ]
        return {"optimizer": type(optimizer).__name__, "groups": groups, "units": units}

    def nbytes(self, name: str) -> int:
        """Bytes of a unit."""
        return sum(local_of(each).nbytes for each in self._tensors(name))

    def sample(self, name: str) -> int:
        """A number that differs when the beginning of the unit's parameter does: cheap."""
        return sample_of(local_of(self._units[name].parameter))

    def gradient_buffers(self) -> dict[str, torch.Tensor]:
        """Fresh memory for the gradient of every unit."""
        return {name: torch.empty_like(local_of(u.parameter)) for name, u in self._units.items()}

    def fingerprint(self, name: str) -> int:
        """A number that differs when any bit of the unit's tensors does (but for bad luck).

        It finds what it is for, an optimizer that went another way. Links check their own bytes.
        """
        return fingerprint_of(map(local_of, self._tensors(name)))

    def _tensors(self, name: str) -> Iterator[torch.Tensor]:
        tree = self.tree(name)
        return _tensors_in([tree["value"], tree["entries"]])

    def _unit(self, name: str) -> _Unit:
        if name not in self._units:
            raise ProtocolError(f"the leaver sent {name!r}, which this rank's model does not have")
        return self._units[name]


def _tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from _tensors_in(each)
    elif isinstance(tree, Mapping):
        for _, each in sorted(tree.items(), key=lambda item: str(item[0])):
            yield from _tensors_in(each)


def sample_of(tensor: torch.Tensor) -> int:
    """The sum of the first words of a tensor: what an optimizer does wrong it does everywhere."""
    # Cut first: what lies on a device is copied to the host, and this is asked in every step.
    beginning = tensor.reshape(-1)[: _SAMPLE_BYTES // tensor.element_size()]
    return sum_of_words(bytes_of(flat_of(beginning))) % 2**64
