"""Every command of the documentation is carried out: here, or by the test that is named for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tests.docs.test_commands import COMMANDS
from tests.docs.walker import Walker, bare, commands, walking
from tests.docs.walks import LONG, SHORT, TRAIN
from tests.support.ports import free_port

pytestmark = [pytest.mark.job, pytest.mark.timeout(600)]


@pytest.fixture
def walker(tmp_path: Path) -> Iterator[Walker]:
    """A reader with a program and the examples."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with walking(tmp_path) as one:
        one.env["TRAINMOVER_JOB"] = "gpt"
        for port in ("8476", "8787", "9478"):
            one.swaps[port] = str(free_port())
        one.swaps |= {
            "trainmover dashboard": f"trainmover dashboard --port {one.swaps['8787']}",
            "trainmover metrics": f"trainmover metrics --port {one.swaps['9478']}",
            "http://notices:": "http://127.0.0.1:",
        }
        yield one


@pytest.mark.long
@pytest.mark.parametrize("name", SHORT)
def test_a_reader_gets_what_the_pages_promise(name: str, walker: Walker) -> None:
    walker.walk(*SHORT[name])


@pytest.mark.walk
@pytest.mark.parametrize("name", LONG)
def test_a_reader_gets_all_that_the_pages_promise(name: str, walker: Walker) -> None:
    walker.walk(*LONG[name])


# -- what is carried out elsewhere -----------------------------------------------------------------

COMPOSE = "tests/compose/test_compose.py"
SLURM = "tests/deploy/test_scripts.py::test_the_slurm_script_trains_with_a_standby"
DRAINED = "tests/deploy/test_slurm.py::test_a_drained_node_is_moved_off_and_a_dead_one_is_replaced"
LOGIN_NODE = "tests/deploy/test_slurm.py::" + (
    "test_an_operator_moves_from_the_login_node_and_scancel_leaves_nothing_behind"
)
TRAIN_ON = f"{COMPOSE}::test_the_job_trains_on_the_four_machines"
KILLED = f"{COMPOSE}::test_a_killed_machine_is_known_by_its_links"
ADDED = f"{COMPOSE}::test_standbys_are_added_and_a_killed_machine_comes_back"
MOVED_THERE = f"{COMPOSE}::test_a_reader_sees_what_an_operator_moves_and_may_not_publish"
THAWED = f"{COMPOSE}::test_a_frozen_machine_is_replaced_and_stays_out"
CUT_OFF = f"{COMPOSE}::test_a_machine_that_is_cut_off_is_replaced_and_stays_out"
PAGE = "tests/compose/test_page.py::test_what_else_the_page_has"
OWN = "tests/compose/test_page.py::test_a_program_of_your_own"
THREE = "tests/compose/test_page.py::test_a_bus_of_three_loses_one"

ELSEWHERE = {
    r"trainmover (migrate node-1 --to node-6 --reason 'upgrade' --yes|"
    r"planner run --job gpt --nats nats://head:4222)": (
        "tests/e2e/test_skew.py::test_a_job_is_upgraded_while_it_runs"
    ),
    r"make (install|check|test|test-all)": ".ci/run",
    r"trainmover run --slots 2 --standbys 1 --when-exhausted fail train.py": (
        "tests/e2e/test_exhausted.py::"
        "test_a_sharded_job_without_machines_goes_on_from_what_it_saved"
    ),
    r"trainmover run --slots 4 --standbys 2 --rebalance 10m train.py": (
        "tests/e2e/test_rebalance.py::"
        "test_the_slowest_machine_is_exchanged_and_the_losses_are_the_same"
    ),
    r"trainmover run --slots 2 --check-determinism train.py": "tests/e2e/test_determinism.py::"
    "test_a_job_whose_bits_differ_ends_and_says_where",
    r"trainmover run --slots 2 --standbys 1 examples/train_accelerate.py --epochs 20": (
        "tests/e2e/test_accelerate.py::test_the_example_is_moved_and_no_bit_changes"
    ),
    r"trainmover (run --slots 2 --standbys 2 examples/train_transformers.py --epochs 4|"
    r"migrate node-0 --yes)": (
        "tests/e2e/test_transformers.py::test_the_example_is_moved_and_broken_and_no_bit_changes"
    ),
    r"trainmover run --slots 2 --standbys 1 examples/train_lightning.py --epochs 8": (
        "tests/e2e/test_lightning.py::test_the_example_is_moved_and_no_bit_changes"
    ),
    r"trainmover run --slots 2 --standbys 2 examples/train_titan.py --steps 400": (
        "tests/e2e/test_titan.py::test_the_example_is_moved_and_broken_and_no_bit_changes"
    ),
    r"trainmover simulate --gpus 65536 .*": "tests/unit/cli/test_simulate.py::"
    "test_a_week_of_64k_gpus_is_small_and_quick",
    r"trainmover simulate --gpus 2048 .*": "tests/unit/cli/test_simulate.py::"
    "test_the_planners_core_is_asked_as_well",
    r"trainmover simulate --gpus 8192 --days .*": "tests/unit/cli/test_simulate.py::"
    "test_people_get_tables_sources_and_a_page",
    r"trainmover simulate --gpus 1024 --days 30 --failures failures.csv": (
        "tests/unit/cli/test_simulate.py::test_failures_come_from_a_file"
    ),
    r"trainmover simulate --gpus 8192 --set .*": (
        "tests/unit/cli/test_simulate.py::test_assumptions_can_be_changed"
    ),
    r"trainmover simulate --from-job gpt": "tests/unit/cli/test_simulate.py::"
    "test_a_running_job_says_the_same_over_its_bus",
    r"trainmover (job record gpt.tmrec.gz .*|simulate --from gpt.tmrec.gz)": (
        "tests/unit/cli/test_simulate.py::test_a_recorded_job_says_what_a_standby_is_worth"
    ),
    r"python -m benchmarks.fidelity --json": "tests/paper/test_fidelity.py::"
    "test_every_other_half_minute_of_a_job_is_foretold",
    r"trainmover simulate --paper": (
        "tests/unit/cli/test_simulate.py::test_the_papers_figures_have_their_deviation"
    ),
    r"trainmover pool advise --machines 64 .*": "tests/unit/cli/test_pool.py::"
    "test_people_get_a_table_the_advice_and_what_it_assumes",
    r"trainmover (pool serve|agent) --pool spares .* --nats-nkey .*": "tests/e2e/test_pool.py::"
    "test_on_a_secured_bus_the_pools_machine_takes_a_slot",
    r"trainmover (pool (serve|status)|agent) --pool spares .*": "tests/e2e/test_pool.py::"
    "test_two_jobs_lose_a_machine_and_the_pool_its_leader",
    r"trainmover pool advise --job my-run": "tests/e2e/test_pool_advise.py::"
    "test_the_facts_of_a_real_job_say_how_many_standbys_it_needs",
    r"make walk": "tests/docs/test_walk.py::test_a_reader_gets_all_that_the_pages_promise",
    r"make demo": "tests/e2e/test_demo_cli.py::test_the_demo_passes_and_leaves_nothing_behind",
    r"docker compose up --build -d|docker compose run --rm cli status": TRAIN_ON,
    r"docker compose kill node-2": KILLED,
    r"docker compose (start node-2|up -d --no-recreate --scale standby=.*)": ADDED,
    r"docker compose (un)?pause node-1": THAWED,
    r"docker network (dis)?connect .*": CUT_OFF,
    r"docker compose restart nats": f"{COMPOSE}::"
    "test_a_restart_of_the_bus_is_not_noticed_by_the_job",
    r"docker compose run --rm cli migrate .*": MOVED_THERE,
    r"docker compose cp keys:.*": MOVED_THERE,
    r"export TRAINMOVER_NATS_NKEY=ops/nkey .*": MOVED_THERE,
    r"docker kill trainmover-planner-1": f"{COMPOSE}::"
    "test_replicas_take_over_from_a_planner_and_a_detector_that_die",
    r"docker compose (logs|run --rm cli (migration|event)|kill -s HUP) .*": PAGE,
    r"TRAINMOVER_STANDBYS=32 docker compose up keys": PAGE,
    r"docker compose --profile dashboard up -d": PAGE,
    r"TRAINMOVER_JOB=mine .* docker compose up -d": OWN,
    r"docker compose down( -v)?": PAGE,
    r"docker compose -f docker-compose.yml -f deploy/compose.cluster.yml .*": THREE,
    r"sbatch .*": SLURM,
    r"deploy/try .*": "tests/deploy/test_try.py::test_every_command_for_a_cluster_is_run",
    r"export TRAINMOVER_NATS_URL=nats://nats-1:4222,.*": "tests/e2e/test_nats_cluster.py::"
    "test_a_real_job_is_moved_while_the_leader_dies",
    r"kubectl kustomize deploy/k8s": "tests/deploy/test_kubernetes.py::"
    "test_every_resource_is_listed",
    r"trainmover bus setup .* --machine standby-0 .*|deploy/k8s/create-secrets .*": "tests/deploy/"
    "test_kubernetes.py::test_every_pod_finds_its_own_key_in_a_secret",
    r"make (dist|lock ARGS=--upgrade)": "tests/security/test_supply.py::"
    "test_make_dist_lists_what_is_in_the_images",
    r"nats-server -c security/server/cluster.conf .*": "tests/security/test_setup.py::"
    "test_servers_know_each_other_by_a_password_that_is_in_their_file_alone",
    r"trainmover bus setup .*(nats-1|6 --host nats).*": "tests/security/test_setup.py::"
    "test_a_server_runs_from_its_files_and_gets_its_streams",
    r"nats-server -c .*": "tests/security/test_setup.py::"
    "test_a_server_runs_from_its_files_and_gets_its_streams",
    r"trainmover notice kubernetes .*": "tests/unit/detection/test_notices.py",
    r"trainmover notice slurm .*": DRAINED,
    r"export TRAINMOVER_NATS_\w+=trainmover-JOBID/.*": LOGIN_NODE,
    r"trainmover \w+ .*--job slurm-JOBID .*": LOGIN_NODE,
    r"pip install 'trainmover\[.*\]'": "tests/e2e/test_wheel.py",
    r"trainmover-device-metrics-feed .*": "tests/e2e/test_detectors.py::"
    "test_a_plugin_opens_an_incident_that_moves_a_machine_and_bad_ones_harm_nobody",
}
SCRIPTED = {
    r"kubectl (apply|drain|-n trainmover) .*": "tests/deploy/test_try.py::"
    "test_every_command_for_a_cluster_is_run",
    r"docker compose --profile obs up -d": "tests/deploy/test_try.py::"
    "test_grafana_is_brought_up_asked_and_taken_down",
    r"nvidia-smi .*": "tests/deploy/test_try.py::test_lines_of_nvidia_smi_are_read",
    r"nats (--server .* )?sub .*": "tests/deploy/test_try.py::"
    "test_the_nats_command_is_given_what_the_page_gives_it",
}
"""What needs something that cannot be had where this was written: ``deploy/try`` runs it there,
and these try that script with stand-ins."""


WALKED = {each for walk in (*SHORT.values(), *LONG.values()) for each in commands(walk)}


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: value[:60])
def test_it_is_carried_out_somewhere(page: str, command: str) -> None:
    plain = bare(command)
    if plain in WALKED:
        return
    known = {**ELSEWHERE, **SCRIPTED}
    tests = [test for each, test in known.items() if re.fullmatch(each, plain)]
    assert tests, f"{page}: nothing carries out {plain!r}"
    for test in tests:
        path, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8") or not name
