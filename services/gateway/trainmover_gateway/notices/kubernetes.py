"""Announcements from Kubernetes: taints and conditions of nodes."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from trainmover.errors import ConfigError, TrainMoverError
from trainmover.events.machine import MachineNoticed

__all__ = ["KubernetesSource", "notices_of"]

MACHINE_LABEL: Final = "trainmover.dev/machine"
"""Label of a node that says which machine it is; the node's own name where it is missing."""

_ENDING: Final[Mapping[str, tuple[str, str]]] = {
    "node.kubernetes.io/unschedulable": ("maintenance", "the node is cordoned"),
    "node.kubernetes.io/out-of-service": ("maintenance", "the node is out of service"),
    "ToBeDeletedByClusterAutoscaler": ("maintenance", "the autoscaler removes the node"),
    "DeletionCandidateOfClusterAutoscaler": ("maintenance", "the autoscaler may remove the node"),
    "karpenter.sh/disrupted": ("maintenance", "Karpenter removes the node"),
    "cloud.google.com/impending-node-termination": ("preemption", "the cloud ends the node"),
    "aws-node-termination-handler/spot-itn": ("preemption", "the spot instance is reclaimed"),
    "aws-node-termination-handler/scheduled-maintenance": ("maintenance", "scheduled by AWS"),
    "kubernetes.azure.com/scalesetpriority-evicted": ("preemption", "the spot node is evicted"),
}
"""Taints that say that a node will go."""

_NORMAL: Final = {"Ready": "True"}
"""Conditions whose normal value is not ``False``."""

_PRESSURE: Final = frozenset({"MemoryPressure", "DiskPressure", "PIDPressure"})
"""Passing conditions that say nothing about the hardware."""

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S: Final = 10.0


def notices_of(nodes: Iterable[Mapping[str, Any]]) -> dict[str, MachineNoticed]:
    """What a list of nodes (the API's ``items``) says about machines."""
    found = {}
    for node in nodes:
        meta = node.get("metadata", {})
        machine = meta.get("labels", {}).get(MACHINE_LABEL) or meta.get("name", "")
        what = _ending(node) or _unwell(node)
        if machine and what is not None:
            kind, reason = what
            found[machine] = MachineNoticed.model_validate(
                {"machine": machine, "kind": kind, "reason": reason, "source": "kubernetes"}
            )
    return found


def _ending(node: Mapping[str, Any]) -> tuple[str, str] | None:
    if node.get("metadata", {}).get("deletionTimestamp"):
        return "maintenance", "the node is being deleted"
    for taint in node.get("spec", {}).get("taints", ()):
        if (known := _ENDING.get(taint.get("key", ""))) is not None:
            return known[0], f"{known[1]} (taint {taint['key']})"
    if node.get("spec", {}).get("unschedulable"):
        return "maintenance", "the node is cordoned"
    return None


def _unwell(node: Mapping[str, Any]) -> tuple[str, str] | None:
    """Conditions of the kubelet and of node-problem-detector."""
    for condition in node.get("status", {}).get("conditions", ()):
        name, status = condition.get("type", ""), condition.get("status", "Unknown")
        if name in _PRESSURE or status == "Unknown":
            continue  # not heard of is not ill: liveness judges that
        if status != _NORMAL.get(name, "False"):
            words = condition.get("message") or condition.get("reason") or "no reason given"
            return "health", f"{name} is {status}: {words}"
    return None


class KubernetesSource:
    """Asks the API server for its nodes.

    Args:
        api: Address of the API server; the cluster's own one when omitted.
        selector: Only nodes with these labels.
        token: Bearer token; the service account's when omitted. It is read again for each request.

    Raises:
        ConfigError: This does not run in a cluster and no address is given.
    """

    def __init__(
        self, *, api: str | None = None, selector: str = "", token: str | None = None
    ) -> None:
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        if api is None and host is None:
            raise ConfigError(
                "this does not run inside a Kubernetes cluster: pass the API server with --api."
            )
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        self._api = (api or f"https://{host}:{port}").rstrip("/")
        self._selector = selector
        self._token = token

    async def __call__(self) -> dict[str, MachineNoticed]:
        """Ask once; see ``watch.Source``."""
        return notices_of(await asyncio.to_thread(self._nodes))

    def _nodes(self) -> list[Mapping[str, Any]]:
        query = urllib.parse.urlencode({"labelSelector": self._selector}) if self._selector else ""
        url = f"{self._api}/api/v1/nodes" + (f"?{query}" if query else "")
        request = urllib.request.Request(url)  # noqa: S310 - the operator's own API server
        token, authority = self._token, _ACCOUNT / "ca.crt"
        if token is None and (_ACCOUNT / "token").exists():
            token = (_ACCOUNT / "token").read_text().strip()
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        context = None
        if url.startswith("https"):
            context = ssl.create_default_context(cafile=authority if authority.exists() else None)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as reply:  # noqa: S310
                items: list[Mapping[str, Any]] = json.load(reply)["items"]
        except (OSError, ValueError, KeyError, urllib.error.HTTPError) as error:
            raise TrainMoverError(
                f"the Kubernetes API at {self._api} does not list nodes: {error}. May the service "
                "account list nodes?"
            ) from error
        return items
