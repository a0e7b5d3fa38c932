"""The manifests: what the schemas of Kubernetes say, and what we promise on top."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from trainmover.security.folder import Setup, write

FOLDER = Path(__file__).parents[2] / "deploy" / "k8s"
WITH_GPUS = FOLDER.with_name("k8s-gpu")
NOT_RESOURCES = {"kustomization.yaml", "hardened.yaml"}
VERSIONS = ("1.33", "1.37")  # backoffLimitPerIndex is stable since 1.33
OURS = {"trainmover-bus", "trainmover-services", "trainmover-executor"}

Resource = dict[str, Any]


def plain() -> list[Resource]:
    files = sorted(path for path in FOLDER.glob("*.yaml") if path.name not in NOT_RESOURCES)
    return [one for path in files for one in yaml.safe_load_all(path.read_text()) if one]


@pytest.fixture(scope="module")
def rendered() -> list[Resource]:
    return rendering_of(FOLDER)


def rendering_of(folder: Path) -> list[Resource]:
    """What ``kubectl apply -k`` would send."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which renders the kustomization, is not here")
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def workloads(resources: list[Resource]) -> Iterator[tuple[str, Resource]]:
    for one in resources:
        if one["kind"] in {"Job", "Deployment", "StatefulSet"}:
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_file_fits_the_schema(version: str) -> None:
    resources = plain()
    assert len(resources) >= 10
    for one in resources:
        kubernetes_validate.validate(one, version, strict=True)


def test_every_resource_is_listed(rendered: list[Resource]) -> None:
    named = {(one["kind"], one["metadata"]["name"]) for one in plain()}
    listed = {(one["kind"], one["metadata"]["name"]) for one in rendered}
    assert named == {one for one in listed if one[0] != "ConfigMap"}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_applied_fits_the_schema(rendered: list[Resource], version: str) -> None:
    for one in rendered:
        kubernetes_validate.validate(one, version, strict=True)


def test_nobody_is_privileged(rendered: list[Resource]) -> None:
    found = dict(workloads(rendered))
    assert found.keys() == {"nats", "setup", "detector", "planner", "node", "standby"}
    for name, pod in found.items():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", name
        [container] = pod["containers"]
        assert container["image"].split(":")[0] in OURS, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert container["resources"]["limits"]["memory"], name


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, set[str]]:
    """Names of the entries of every secret that ``create-secrets`` would make."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which makes secrets, is not here")
    machines = tuple(f"{kind}-{index}" for kind in ("node", "standby") for index in range(4))
    write(tmp_path, Setup(jobs=("gpt",), machines=machines, hosts=("nats",)))
    done = subprocess.run(
        [FOLDER / "create-secrets", tmp_path, "gpt", "--dry-run=client", "--output=yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = [one for text in done.stdout.split("apiVersion: v1\n") if (one := yaml.safe_load(text))]
    return {one["metadata"]["name"]: set(one["data"]) for one in made}


def test_every_pod_finds_its_own_key_in_a_secret(
    rendered: list[Resource], secrets: dict[str, set[str]]
) -> None:
    assert secrets["server"] == {"nats.conf", "auth.conf", "server.pem", "server.key"}
    [environment] = [one["data"] for one in rendered if one["kind"] == "ConfigMap"]
    for name, pod in workloads(rendered):
        mounted = {
            mount["mountPath"]: mount
            for mount in pod["containers"][0]["volumeMounts"]
            if mount["name"] in {"keys", "machines"}
        }
        volumes = {
            volume["name"]: volume["secret"]["secretName"]
            for volume in pod["volumes"]
            if "secret" in volume
        }
        assert set(volumes.values()) <= secrets.keys(), name
        if name == "nats":
            continue
        if name not in {"node", "standby"}:  # a folder of its own
            assert volumes["keys"] == {"setup": "admin"}.get(name, name)
            assert mounted.keys() == {"/var/lib/trainmover/keys"}
            assert secrets[volumes["keys"]] == {"nkey", "ca.pem"}
            continue
        # As the kubelet does: the job's name and the pod's index.
        entries = {
            path: mount.get("subPath") or mount["subPathExpr"].replace("$(MACHINE_KIND)", name)
            for path, mount in mounted.items()
        }
        assert entries[environment["TRAINMOVER_NATS_NKEY"]] == f"{name}-$(JOB_COMPLETION_INDEX)"
        assert f"{name}-0" in secrets["machines"]
        assert entries[environment["TRAINMOVER_NATS_CA"]] in secrets["machines"]
        variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        assert entries[variables["TRAINMOVER_LINK_SECRET_FILE"]] in secrets["machines"]


def test_training_is_never_killed_for_the_bus(rendered: list[Resource]) -> None:
    """A probe that fails without a bus may take a machine out of a list, but not its life."""
    for name, pod in workloads(rendered):
        if name != "nats":
            assert "livenessProbe" not in pod["containers"][0], name


def test_nodes_and_standbys_run_the_same_program(rendered: list[Resource]) -> None:
    found = dict(workloads(rendered))
    assert found["node"] == found["standby"]
    [slots] = [word for word in found["node"]["containers"][0]["args"] if "slots" in word]
    jobs = {one["metadata"]["name"]: one["spec"] for one in rendered if one["kind"] == "Job"}
    [budget] = [one for one in rendered if one["kind"] == "PodDisruptionBudget"]
    assert slots == f"--slots={jobs['node']['completions']}"
    assert budget["spec"]["minAvailable"] == jobs["node"]["completions"]


@pytest.mark.parametrize("version", VERSIONS)
def test_machines_with_gpus_have_a_rank_for_each(rendered: list[Resource], version: str) -> None:
    resources = rendering_of(WITH_GPUS)
    for one in resources:
        kubernetes_validate.validate(one, version, strict=True)
    found, plain = dict(workloads(resources)), dict(workloads(rendered))
    assert found["node"] == found["standby"]
    [machine] = found["node"]["containers"]
    gpus = machine["resources"]["limits"]["nvidia.com/gpu"]
    at = machine["args"].index("-m")
    assert f"--nproc-per-node={gpus}" in machine["args"][:at]
    assert machine["args"][-1] == "--device=cuda"
    assert {"name": "shm", "mountPath": "/dev/shm"} in machine["volumeMounts"]
    assert machine["securityContext"] == plain["node"]["containers"][0]["securityContext"]
    assert {name: pod for name, pod in found.items() if name not in {"node", "standby"}} == {
        name: pod for name, pod in plain.items() if name not in {"node", "standby"}
    }


def test_only_what_must_talk_may_talk(rendered: list[Resource]) -> None:
    policies = {
        one["metadata"]["name"]: one["spec"] for one in rendered if one["kind"] == "NetworkPolicy"
    }
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    callers = [
        rule["podSelector"]["matchLabels"]
        for name, spec in policies.items()
        for entry in spec.get("ingress", [])
        for rule in entry["from"]
        if name != "nobody"
    ]
    assert callers == [
        {"app.kubernetes.io/part-of": "trainmover"},
        {"app.kubernetes.io/component": "machine"},
    ]
