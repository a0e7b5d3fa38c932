"""deploy/obs: what dashboards and alerts ask for is what the exporter has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.metrics import exported

ROOT = Path(__file__).parents[2]
OBS = ROOT / "deploy" / "obs"
BOARDS = sorted((OBS / "grafana" / "dashboards").glob("*.json"))
RUNBOOKS = "docs/howto/runbooks.md"
RULES: list[dict[str, Any]] = yaml.safe_load((OBS / "alerts.yml").read_text())["groups"][0]["rules"]


KNOWN = {**exported(), "up": frozenset({"job", "instance"})}
"""Labels by name, of what the exporter has, and of Prometheus' own metric."""


def asked(expression: str) -> list[tuple[str, set[str]]]:
    """(metric, labels) that an expression names."""
    return [
        (name, set(re.findall(r"(\w+)\s*=~?", labels)))
        for name, labels in re.findall(r"\b(trainmover_\w+|up\b)(\{[^}]*\})?", expression)
    ]


def expressions(board: dict[str, Any]) -> list[str]:
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*found, *(one["expr"] for one in board["annotations"]["list"])]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_dashboards_ask_for_what_there_is(path: Path) -> None:
    board = json.loads(path.read_text())
    for expression in expressions(board):
        names = asked(expression)
        assert names, expression
        for name, labels in names:
            assert name in KNOWN, expression
            assert labels <= KNOWN[name], expression
    for panel in board["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.search(r"by \(([^)]*)\)", target["expr"])
            known = (
                set(re.split(r",\s*", grouped[1]))
                if grouped
                else set[str]().union(*(KNOWN[name] for name, _ in asked(target["expr"])))
            )
            assert shown <= known, target


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_have_ids_and_room_of_their_own(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        box = panel["gridPos"]
        assert box["x"] + box["w"] <= 24
        cells = {
            (x, y)
            for x in range(box["x"], box["x"] + box["w"])
            for y in range(box["y"], box["y"] + box["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "trainmover"


def test_there_are_two_dashboards() -> None:
    assert [path.stem for path in BOARDS] == ["job", "migrations"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is_and_says_the_cure(rule: dict[str, Any]) -> None:
    named = asked(rule["expr"])
    assert named
    for name, labels in named:
        assert labels <= KNOWN[name]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert "`trainmover " in rule["annotations"]["description"]


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    alerts = [rule["alert"] for rule in RULES]
    titles = re.findall(r"^## (\w+)$", (ROOT / RUNBOOKS).read_text(), re.MULTILINE)
    assert sorted(titles) == sorted(alerts)
    for rule in RULES:
        anchor = f'{{{{ or $externalLabels.runbooks "{RUNBOOKS}" }}}}#{rule["alert"].lower()}'
        assert rule["annotations"]["runbook_url"] == anchor


def test_each_alert_is_shown_to_fire() -> None:
    tests = yaml.safe_load((OBS / "alerts.test.yml").read_text())["tests"]
    fired = {
        one["alertname"] for test in tests for one in test["alert_rule_test"] if "exp_alerts" in one
    }
    assert fired == {rule["alert"] for rule in RULES}


def test_the_containers_are_pinned_and_listen_on_this_host_only() -> None:
    stack = yaml.safe_load((OBS / "compose.yml").read_text())
    main = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert main["include"] == ["deploy/obs/compose.yml"]
    assert not stack["services"].keys() & main["services"].keys()
    for name, service in stack["services"].items():
        assert service["profiles"], name
        image = service["image"]
        assert re.search(r":v?\d+\.\d+\.\d+$|\$\{TRAINMOVER_TAG", image), image
        assert service["read_only"] is True
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), port
        for volume in service.get("volumes", ()):
            if volume.startswith("./"):
                assert (OBS / volume.split(":")[0]).exists(), volume


def test_every_piece_finds_the_next() -> None:
    scraped = yaml.safe_load((OBS / "prometheus.yml").read_text())
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == ["metrics:9478"]
    folder = OBS / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert (source["uid"], source["url"]) == ("trainmover", "http://prometheus:9090")
    (provider,) = yaml.safe_load((folder / "dashboards" / "trainmover.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here")
@pytest.mark.parametrize(
    "argv",
    [("check", "config", "prometheus.yml"), ("test", "rules", "alerts.test.yml")],
    ids=" ".join,
)
def test_prometheus_itself_agrees(argv: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *argv], cwd=OBS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
