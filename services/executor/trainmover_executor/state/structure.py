"""What a program changes about its models and optimizers besides tensors and settings.

Fine-tuning thaws layers and gives their parameters to the optimizer in the middle of a run; loops
turn dropout down. A joiner's program was told of none of that if it is behind a condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn

from trainmover.errors import ConfigError

__all__ = ["Structure"]

_PLAIN: Final = frozenset({type(None), bool, int, float, str})


class Structure:
    """Compares with what was there when the session was made.

    Args:
        models: The session's models.
        optimizers: Its optimizers.
    """

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._models = models
        self._optimizers = optimizers
        self._first = {(path, name): value for path, _, name, value in self._attributes()}

    def tree(self, *, shapes: bool = False) -> dict[str, Any]:
        """It as of now, as a portable tree.

        Parameters and modules are given by their place in the models.

        Args:
            shapes: Those of parameters, too: for whoever takes this rank's own place.
        """
        own = [list(parameter.shape) for parameter in self._parameters()] if shapes else []
        places = {id(parameter): at for at, parameter in enumerate(self._parameters())}
        return {
            "groups": [
                [
                    [places.get(id(each), -1) for each in group["params"]]
                    for group in one.param_groups
                ]
                for one in self._optimizers
            ],
            "shapes": own,
            "trainable": [parameter.requires_grad for parameter in self._parameters()],
            "modes": [module.training for module in self._modules()],
            "attributes": [
                [path, name, value]
                for path, _, name, value in self._attributes()
                if self._first.get((path, name), value) != value
            ],
        }

    def load(self, tree: dict[str, Any]) -> None:
        """Be like another rank's ``tree``: groups are added and removed, flags set.

        Raises:
            ConfigError: The models, optimizers or shapes cannot be made alike.
        """
        here, there = len(self._parameters()), len(tree["trainable"])
        if here != there:
            raise ConfigError(
                f"the model has {here} parameters here, and {there} at the job's ranks: the "
                "program gave it others behind its last step, and a machine died before the next "
                "one. Have it change in front of a step that is followed by others in the same "
                "call of session.steps(), or start from the last checkpoint"
            )
        for parameter, shape in zip(self._parameters(), tree.get("shapes", []), strict=False):
            if list(parameter.shape) != shape:
                self.resize(parameter, shape)
        parameters = list(self._parameters())
        for optimizer, groups in zip(self._optimizers, tree["groups"], strict=True):
            self._match(optimizer, groups, parameters)
        for parameter, trainable in zip(parameters, tree["trainable"], strict=True):
            if parameter.requires_grad != trainable:
                parameter.requires_grad_(trainable)
        for module, training in zip(self._modules(), tree["modes"], strict=True):
            module.training = training
        changed = {(path, name): value for path, name, value in tree["attributes"]}
        for path, module, name, value in list(self._attributes()):
            wanted = changed.get((path, name), value)
            if wanted != value:
                setattr(module, name, wanted)

    def resize(self, parameter: nn.Parameter, shape: Sequence[int]) -> None:
        """Another parameter takes its place, as where a program adds and prunes points.

        Its values come with the state. Autograd may remember the shape of the one before.

        Raises:
            ConfigError: It is sharded.
        """
        if type(parameter) is not nn.Parameter:
            raise ConfigError(
                f"a parameter has the shape {list(parameter.shape)} here and {list(shape)} at the "
                f"job's ranks, and a {type(parameter).__name__} cannot be given another shape"
            )
        other = nn.Parameter(parameter.detach().new_zeros([*shape]), parameter.requires_grad)
        for module in self._modules():
            for name, each in module._parameters.items():  # noqa: SLF001 - parameters() copies
                if each is parameter:
                    module._parameters[name] = other  # noqa: SLF001 - as above
        for optimizer in self._optimizers:
            optimizer.state.pop(parameter, None)
            for group in optimizer.param_groups:
                group["params"] = [other if each is parameter else each for each in group["params"]]

    def _match(
        self,
        optimizer: torch.optim.Optimizer,
        groups: list[list[int]],
        parameters: Sequence[nn.Parameter],
    ) -> None:
        del optimizer.param_groups[len(groups) :]
        for at, places in enumerate(groups):
            wanted = [parameters[place] for place in places if place >= 0]
            if at == len(optimizer.param_groups) and len(wanted) == len(places):
                optimizer.add_param_group({"params": wanted})
            elif at >= len(optimizer.param_groups) or len(places) != len(
                optimizer.param_groups[at]["params"]
            ):
                raise ConfigError(
                    f"parameter group {at} of {type(optimizer).__name__} is another one than at "
                    "the job's ranks: its parameters changed while it trained, or are in no model "
                    "that the session knows"
                )

    def _parameters(self) -> list[nn.Parameter]:
        found = [each for model in self._models for each in model.parameters()]
        return list({id(each): each for each in found}.values())

    def _modules(self) -> list[nn.Module]:
        return [module for model in self._models for module in model.modules()]

    def _attributes(self) -> Iterator[tuple[str, nn.Module, str, Any]]:
        """(place, module, name, value) of the plain values that modules keep as attributes."""
        for at, model in enumerate(self._models):
            for path, module in model.named_modules():
                for name, value in vars(module).items():
                    if type(value) in _PLAIN and name != "training" and not name.startswith("_"):
                        yield f"{at}.{path}", module, name, value
