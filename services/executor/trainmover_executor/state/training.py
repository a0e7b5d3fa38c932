"""The state of a training program that a joiner must hold: model, optimizer and the rest.

Models and optimizers are walked directly, because their tensors are received in place: a joiner
that ran shadow iterations already owns every tensor at its final address. Everything else speaks
``state_dict`` / ``load_state_dict``.
"""

from __future__ import annotations

import hashlib
import random
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from trainmover.errors import ConfigError
from trainmover_executor.state.loose import LooseParameters
from trainmover_executor.state.modules import (
    assign_buffer,
    held_by,
    load_module,
    module_tree,
    modules_in,
)
from trainmover_executor.state.optimizers.entries import common_entries, load_common
from trainmover_executor.state.optimizers.numbers import OptimizerNumbers
from trainmover_executor.state.optimizers.settings import load_settings, settings_apart, settings_of
from trainmover_executor.state.optimizers.trees import (
    load_group_settings,
    load_optimizer,
    optimizer_tree,
)
from trainmover_executor.state.optimizers.wrapped import with_inner
from trainmover_executor.state.packing.codec import encode
from trainmover_executor.state.packing.fingerprint import fingerprint_of
from trainmover_executor.state.packing.memory import (
    bytes_of,
    flat_of,
    on_devices_of,
    without_history,
)
from trainmover_executor.state.packing.shards import assign, like_parameter, local_of
from trainmover_executor.state.structure import Structure

__all__ = [
    "Stateful",
    "TrainingState",
]

_ALIKE: Final = (LRScheduler, torch.amp.GradScaler, nn.Module, DataLoader)


@runtime_checkable
class Stateful(Protocol):
    """The convention of ``torch.distributed.checkpoint``."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that must survive."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take it back."""
        ...


class TrainingState:
    """Reads and writes the replicated or sharded state of one rank.

    Attributes:
        own_extras: Names of large ones of ``extras`` that turned out to be each rank's own.

    Args:
        models: Modules whose parameters and buffers belong to the state. Parameters that an
            optimizer holds and no module are added as one more (see ``loose``).
        optimizers: Their optimizers.
        others: Schedulers, scalers, whatever has ``state_dict``, by name.

    Raises:
        ConfigError: Something in ``others`` has no ``state_dict`` / ``load_state_dict`` or is an
            optimizer, or an optimizer has its state sharded over ranks.
    """

    def __init__(
        self,
        *,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        others: Mapping[str, Stateful],
    ) -> None:
        for name, other in others.items():
            _check_other(name, other)
        loose = LooseParameters.of(models, optimizers)
        self.models = (*models, loose) if loose is not None else tuple(models)
        self.optimizers = with_inner(optimizers)
        self._numbers = OptimizerNumbers(self.optimizers)
        self.others = dict(others)
        self.own_extras: set[str] = set()
        self.all_models = (*self.models, *self.modules_besides.values())
        self.structure = Structure(self.models, self.optimizers)
        self._gradients_then: list[weakref.ref[torch.Tensor] | None] = []
        modules = [module for model in self.models for module in model.modules()]
        self._sharded = [module for module in modules if isinstance(module, FSDPModule)]
        self._replicated = [ddp for ddp in modules if isinstance(ddp, DistributedDataParallel)]

    @property
    def extras(self) -> dict[str, Stateful]:
        """Those of ``others`` that may be each rank's own; models and schedulers are alike."""
        return {name: one for name, one in self.others.items() if not isinstance(one, _ALIKE)}

    @property
    def modules_besides(self) -> dict[str, nn.Module]:
        """Those of ``others`` that are modules."""
        return {n: each for n, each in self.others.items() if isinstance(each, nn.Module)}

    def outline(self, *, extras: bool) -> list[Any]:
        """What there is of it, as numbers and strings that ranks can compare.

        Args:
            extras: With the names of ``others``.
        """
        names = sorted(self.others) if extras else []
        return [len(self.models), names, self.structure.tree()["groups"]]

    def keeps_besides(self, optimizer: int) -> bool:
        """Whether that one of ``optimizers`` keeps what belongs to no parameter."""
        return bool(
            common_entries(self.optimizers[optimizer]) or self._numbers.changed()[optimizer]
        )

    def forget_passes(self) -> None:
        """Have wrappers forget what they remember of earlier passes over the model.

        A forward pass without a backward pass, an evaluation say, changes what they communicate in
        the next one, and so does one that raised because communication broke. A joiner had neither
        and would issue other collectives. So at every step boundary, at all ranks alike: who
        forgets alone, communicates alone.

        - FSDP2 leaves its root's parameters gathered. They are no state of this rank, and may be
          stand-ins, which the next forward pass would take for the real ones. It also notes what to
          gather ahead of the next backward pass.
        - DDP leaves out to send buffers around in front of the next forward pass.
        """
        for module in self._sharded:
            # Only the root of a pass knows of it, and only one that had a pass knows that it is.
            is_root = module._get_fsdp_state()._is_root  # noqa: SLF001 - no public name
            if is_root and hasattr(module, "reset_iter_state"):  # since torch 2.13
                module.reset_iter_state()
            module.reshard()
        for ddp in self._replicated:
            ddp.require_forward_param_sync = True

    def tree(self) -> dict[str, Any]:
        """All of it, with live tensors."""
        return {
            "models": [module_tree(model) for model in self.models],
            "optimizers": [optimizer_tree(optimizer) for optimizer in self.optimizers],
            "numbers": self._numbers.changed(),
            "others": self.small(),
        }

    def large(self) -> dict[str, Any]:
        """Parameters and what optimizers keep, with live tensors."""
        return {
            "parameters": [local_of(parameter) for parameter in self.parameters()],
            "optimizers": [optimizer_tree(optimizer) for optimizer in self.optimizers],
            "numbers": self._numbers.changed(),
        }

    @torch.no_grad()
    def load_large(self, tree: dict[str, Any], *, but_tensors: bool = False) -> None:
        """Put back a copy of what ``large`` returned.

        Args:
            tree: The copy.
            but_tensors: Only what belongs to no single parameter: tensors hold what they did.
        """
        if not but_tensors:
            for parameter, value in zip(self.parameters(), tree["parameters"], strict=True):
                assign(local_of(parameter), value)
        load = load_group_settings if but_tensors else load_optimizer
        for optimizer, state in zip(self.optimizers, tree["optimizers"], strict=True):
            load(optimizer, state)
        self._numbers.load(tree["numbers"])

    def gradients(self) -> list[torch.Tensor | None]:
        """Live local gradients, in the order of ``parameters``."""
        return [None if p.grad is None else local_of(p.grad) for p in self.parameters()]

    def gradient_print(self) -> int:
        """A number that differs when any local gradient does."""
        return fingerprint_of(each for each in self.gradients() if each is not None)

    def note_gradients(self) -> list[torch.Tensor | None]:
        """A body begins: what it leaves in place is told apart from what it makes anew.

        Returns:
            The gradients.
        """
        gradients = [parameter.grad for parameter in self.parameters()]
        self._gradients_then = [None if each is None else weakref.ref(each) for each in gradients]
        return gradients

    def lasting_gradients(self) -> list[bool] | None:
        """Which parameters have had the same gradient since, set to zero by each body.

        One that had none may. None if no parameter has, as with ``zero_grad(set_to_none=True)``,
        which is usual.
        """
        then = zip(self.parameters(), self._gradients_then, strict=False)
        lasting = [p.grad is not None and (ref is None or ref() is p.grad) for p, ref in then]
        return lasting if any(lasting) else None

    @torch.no_grad()
    def drop_gradients(self, *, but: Sequence[bool] | None = None) -> None:
        """Have none: shadow iterations leave some, and a body may add to what it finds.

        Args:
            but: Of these parameters have zeros, see ``lasting_gradients``: DDP divides what it
                finds in its buckets, and multiplies what is new by a rounded fraction; an
                optimizer takes another step with zeros than without.
        """
        kept = iter(but or ())
        for parameter in self.parameters():
            if not next(kept, False):
                parameter.grad = None
            elif parameter.grad is None:
                zeros = torch.zeros_like(local_of(parameter))
                parameter.grad = like_parameter(parameter, zeros)
            else:
                parameter.grad.zero_()

    def load_gradients(self, values: Sequence[torch.Tensor | None]) -> None:
        """Take over what another rank's ``gradients`` returned."""
        for parameter, value in zip(self.parameters(), values, strict=True):
            if value is None:
                parameter.grad = None
            elif parameter.grad is not None:  # in place: wrappers keep views of it
                assign(local_of(parameter.grad), value)
            else:
                parameter.grad = like_parameter(parameter, value)

    def settings(self) -> dict[str, Any]:
        """What optimizers are set to, and the state of schedulers and scalers, as of now.

        Programs read numbers in these, and the code behind a vote moves them on. None is changed in
        place, but for a learning rate that is a tensor, which is copied.
        """
        others = {
            name: other.state_dict()
            for name, other in self.others.items()
            if isinstance(other, LRScheduler | torch.amp.GradScaler)
        }
        groups = [settings_apart(each) for each in self.optimizers]
        return {"groups": groups, "others": others}

    def compared_settings(self, step: int) -> dict[str, Any]:
        """Settings of one optimizer group, or the state of one scheduler; another for each step."""
        groups = [group for each in self.optimizers for group in each.param_groups]
        schedulers = [each for each in self.others.values() if isinstance(each, LRScheduler)]
        at = step % max(1, len(groups) + len(schedulers))
        if at < len(groups):
            return {key: value for key, value in groups[at].items() if key != "params"}
        return schedulers[at - len(groups)].state_dict() if schedulers else {}

    def load_settings(self, tree: dict[str, Any]) -> None:
        """Take over what ``settings`` returned here or at another rank."""
        for optimizer, groups in zip(self.optimizers, tree["groups"], strict=True):
            load_settings(optimizer, groups)
        for name, state in tree["others"].items():
            self.others[name].load_state_dict(state)

    def has_groups_of(self, tree: dict[str, Any]) -> bool:
        """Whether ``tree``, of ``settings``, is of as many groups as there are here."""
        groups = [len(each.param_groups) for each in self.optimizers]
        return bool(tree) and [len(each) for each in tree["groups"]] == groups

    def small(self) -> dict[str, Any]:
        """The state of ``others`` alone: small, and changed by user code around the vote."""
        return {name: without_history(one.state_dict()) for name, one in self.others.items()}

    def _give_shapes(self, model: nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
        for name, live in list(model.named_parameters()):
            value = parameters.get(name)
            if value is not None and local_of(live).shape != value.shape:
                self.structure.resize(live, value.shape)

    def load_small(self, state: dict[str, Any]) -> None:
        """Put back what ``small`` returned."""
        for name, other in self.others.items():
            other.load_state_dict(state[name])
            for scaler in _scalers_in(other):
                # It notes outside of its state_dict that it unscaled an optimizer. In an aborted
                # step update() does not come to clear that, and unscale_() would refuse the redo.
                scaler._per_optimizer_states.clear()  # noqa: SLF001 - no public way

    @torch.no_grad()
    def load(self, tree: dict[str, Any]) -> None:
        """Take over a tree that another rank's ``tree`` described.

        Raises:
            ConfigError: The two programs do not hold the same things.
        """
        for model, state in zip(self.models, tree["models"], strict=True):
            if not self._sharded:
                self._give_shapes(model, state["parameters"])
            load_module(model, state)
        for optimizer, state in zip(self.optimizers, tree["optimizers"], strict=True):
            load_optimizer(optimizer, state)
        if "numbers" in tree:  # a neighbour's copy is of an optimizer of torch's, which has none
            self._numbers.load(tree["numbers"])
        self.load_small(on_devices_of(self.small(), tree["others"]))

    def rest(self) -> dict[str, Any]:
        """What is left when the parameters and what optimizers keep of them is handed over."""
        return {
            "buffers": [module_tree(model)["buffers"] for model in self.models],
            "settings": [settings_of(optimizer) for optimizer in self.optimizers],
            "common": [common_entries(optimizer) for optimizer in self.optimizers],
            "numbers": self._numbers.changed(),
            "others": self.small(),
        }

    @torch.no_grad()
    def load_rest(self, tree: dict[str, Any]) -> None:
        """Take over what another rank's ``rest`` returned."""
        for model, buffers in zip(self.models, tree["buffers"], strict=True):
            for name, value in buffers.items():
                assign_buffer(model, name, value)
        for optimizer, settings in zip(self.optimizers, tree["settings"], strict=True):
            load_settings(optimizer, settings)
        for optimizer, entries in zip(self.optimizers, tree["common"], strict=True):
            load_common(optimizer, entries)
        self._numbers.load(tree["numbers"])
        self.load_small(on_devices_of(self.small(), tree["others"]))

    def buffers(self) -> list[torch.Tensor]:
        """Live module buffers: what a forward pass may change besides gradients.

        Those of modules in ``others`` are behind those of ``models``: a target network that is
        in training mode has statistics of its own.
        """
        return [local_of(buffer) for buffer in held_by(modules_in(self.all_models), "_buffers")]

    @torch.no_grad()
    def load_buffers(self, values: Iterable[Sequence[Any]]) -> None:
        """Put back (index, value) pairs of ``buffers``."""
        modules = modules_in(self.all_models)
        held = [(one, name) for one in modules for name in one._buffers]  # noqa: SLF001
        live = {id(one._buffers[name]): (one, name) for one, name in reversed(held)}  # noqa: SLF001
        owners = [live[id(buffer)] for buffer in held_by(modules_in(self.all_models), "_buffers")]
        for index, value in values:
            holder, name = owners[index]
            assign_buffer(holder, name, value)

    def parameters(self) -> list[torch.Tensor]:
        """Live parameters."""
        return held_by(modules_in(self.models), "_parameters")

    def modes(self) -> list[bool]:
        """Whether each module is in training mode."""
        return [module.training for model in self.models for module in model.modules()]

    def load_modes(self, modes: list[bool]) -> None:
        """Put back what ``modes`` returned."""
        modules = [module for model in self.models for module in model.modules()]
        for module, training in zip(modules, modes, strict=True):
            module.training = training

    def digest(self) -> str:
        """SHA-256 over every tensor and number of the state, in a fixed order."""
        skeleton, tensors = encode(self.tree())
        digest = hashlib.sha256(repr(skeleton).encode())
        for spec, tensor in tensors:
            digest.update(repr((spec.path, spec.shape)).encode())
            digest.update(bytes_of(flat_of(tensor)))
        return digest.hexdigest()


def _scalers_in(other: Stateful) -> list[torch.amp.GradScaler]:
    """Enabled ones, it or those that it keeps: programs wrap one in an object of their own."""
    held = [other, *getattr(other, "__dict__", {}).values()]
    scalers = [each for each in held if isinstance(each, torch.amp.GradScaler)]
    return [each for each in scalers if each.is_enabled()]  # others have nothing


def _check_other(name: str, other: object) -> None:
    said = f"{name!r} ({type(other).__name__})"
    if isinstance(other, torch.optim.Optimizer):
        raise ConfigError(
            f"{said} is an optimizer: pass all of them as optimizer=[...], so that each of their "
            "steps is voted on."
        )
    if isinstance(other, Stateful):
        return
    if isinstance(other, torch.Generator | random.Random | np.random.Generator):
        raise ConfigError(
            f"{said} need not be passed: the session finds the random generators that the "
            "program's variables hold, and carries them. Leave it out."
        )
    if isinstance(other, list | tuple | dict):
        raise ConfigError(
            f"{said} holds several: pass each by a name of its own. Schedulers need not be passed, "
            "the session finds them"
        )
    raise ConfigError(
        f"{said} cannot be handed to a joiner: it has no state_dict() and load_state_dict(). Give "
        "the session an object that has."
    )
