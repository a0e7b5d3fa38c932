"""The joiner's side of following: units, then steps, then the rest; see ``lead`` for the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog
import torch

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover_executor.links.link import Link, LinkBrokenError
from trainmover_executor.state.handing_over.transfer import (
    StateCorruptError,
    Transferred,
    live_tensors,
    receive_tree,
    send_tree,
)
from trainmover_executor.state.optimizers.settings import load_settings
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.units import StateUnits

__all__ = ["StateFollower"]

log = structlog.get_logger(__name__)


class StateFollower:
    """Brings this rank's state to where the leaver's is.

    Args:
        link: Link to the leaver.
        state: This rank's state, after shadow iterations.
        epoch: Epoch this rank is to enter.
        patience_s: How long the leaver may be silent, seconds.

    Attributes:
        steps: Optimizer steps followed.
        copied: Whether the state was copied as a whole at the switch.
    """

    def __init__(self, link: Link, state: TrainingState, *, epoch: int, patience_s: float) -> None:
        self._link = link
        self._state = state
        self._units = StateUnits(state)
        self._epoch = epoch
        self._patience_s = patience_s
        self._proof: threading.Thread | None = None
        self._doubt = ""
        self.steps = 0
        self.copied = False

    def follow(self, *, meanwhile: Callable[[], None]) -> tuple[dict[str, Any], Transferred]:
        """Follow until the switch; the message that ended it, and what went over the link with it.

        It ends before that, with a message of where the job stands now, when the job's program has
        gone on to another call of ``session.steps``.

        Args:
            meanwhile: Called behind each step that was followed.

        Raises:
            LinkBrokenError: The leaver is gone, or the migration was aborted.
            StateCorruptError: The state that arrived is not the leaver's.
            ProtocolError: The leaver sent something unknown.
        """
        had = [parameter.grad for parameter in self._state.parameters()]
        try:
            message, received = self._take_all(meanwhile)
        finally:
            for parameter, gradient in zip(self._state.parameters(), had, strict=True):
                parameter.grad = gradient
        kind = message.get("kind")
        if "structure" in message and kind != "place":  # another one since following began
            self._state.structure.load(message["structure"])
        if kind == "copy":
            self.copied = True
            self._state.load(message["state"])
        elif kind == "rest":
            self._state.load_rest(message["rest"])
            self._take_units(message)
        elif kind != "place":
            raise ProtocolError(f"the leaver sent a message of kind {kind!r}")
        return message, received

    def _take_all(self, meanwhile: Callable[[], None]) -> tuple[dict[str, Any], Transferred]:
        """Units and steps, until a message comes that is neither."""
        live = self._live()
        apply: Mapping[str, Callable[[dict[str, Any]], None]] = {
            "unit": self._take_units,
            "step": self._take_step,
            "compare": self._answer,
        }
        while True:
            message, received = receive_tree(
                self._link, epoch=self._epoch, live=live, first_timeout_s=self._patience_s
            )
            take = apply.get(message.get("kind"))
            if take is None:
                return message, received
            take(message)
            if take == self._take_step:
                meanwhile()

    def begin_proof(self) -> None:
        """Compare with the leaver's fingerprints while the first step runs forward and backward.

        For followed state only: a copy carries its checksum.
        """
        self._proof = threading.Thread(target=self._prove, name="tm-proof", daemon=True)
        self._proof.start()

    def check_proof(self) -> None:
        """Wait for the comparison; call it before the first vote.

        Raises:
            StateCorruptError: This rank's state is not the leaver's.
        """
        if self._proof is not None:
            self._proof.join()
            self._proof = None
            if self._doubt:
                raise StateCorruptError(self._doubt)

    def _live(self) -> dict[str, torch.Tensor]:
        units = {name: self._units.tree(name) for name in self._units.names}
        tree = {
            "state": self._state.tree(),
            "rest": self._state.rest(),
            "units": units,
            "gradients": self._units.gradient_buffers(),
        }
        return live_tensors(tree)

    def _take_units(self, message: dict[str, Any]) -> None:
        for name, tree in message["units"].items():
            self._units.load(name, tree)

    def _take_step(self, message: dict[str, Any]) -> None:
        index = message["optimizer"]
        optimizer, settings = self._state.optimizers[index], message["settings"]
        if len(optimizer.param_groups) != len(settings):
            raise StateCorruptError(
                f"the leaver's {type(optimizer).__name__} has {len(settings)} parameter groups "
                f"now, and {len(optimizer.param_groups)} when it began to hand over: migrate again"
            )
        load_settings(optimizer, settings)
        self._units.step(index, message["gradients"])
        self.steps += 1

    def _answer(self, message: dict[str, Any]) -> None:
        prints = {name: self._units.fingerprint(name) for name in message["units"]}
        send_tree(self._link, prints, epoch=self._epoch)

    def _prove(self) -> None:
        try:
            own = {name: self._units.fingerprint(name) for name in self._units.names}
            message, _ = receive_tree(
                self._link, epoch=self._epoch, live={}, first_timeout_s=self._patience_s
            )
        except (LinkBrokenError, StaleEpochError, ProtocolError) as error:
            # It may have died since: then this is the only copy, and it was compared in phase 1.
            log.warning("the leaver's state could not be compared again", error=str(error))
            return
        different = [name for name in own if message["prints"].get(name) != own[name]]
        if different:
            self._doubt = (
                f"after {self.steps} followed steps {different[:3]} differ from the leaver's"
            )
