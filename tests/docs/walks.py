"""What readers of the documentation do, in an order in which each command has something to do."""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.docs.pages import ROOT, fences
from tests.docs.walker import Say, Step, Walker, Watch
from tests.support.looking import warm
from tests.support.ports import free_port

from trainmover.bus.credentials import Credentials
from trainmover_console.view import JobView

TRAIN = """
import argparse, time, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trainmover import Session

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--steps", type=int, default=1_000_000)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
Session.init()
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.AdamW(model.parameters(), options.lr)
session = Session(model=model, optimizer=optimizer)
loader = iter(lambda: torch.randn(8, 16), None)
for step in session.steps(loader, max_steps=options.steps):
    with step as batch:
        time.sleep(0.01)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
"""


# -- what readers do between the commands ----------------------------------------------------------


def on_this_host(walker: Walker) -> None:
    """The job runs here: where its bus is."""
    (record,) = (walker.folder / "home" / "jobs").glob("*.json")
    told = json.loads(record.read_text())
    at(walker, told["nats"])
    if told["clients"]:
        walker.credentials = Credentials.of_folder(Path(told["clients"]) / "ops")


def at(walker: Walker, url: str) -> None:
    walker.swaps |= {"nats://head:4222": url, "nats://127.0.0.1:4222": url}


def warmed(standbys: int, *, slots: int = 4) -> Step:
    """Wait for standbys that could take any slot."""

    def wait(walker: Walker) -> None:
        walker.until(
            lambda view: warm(view, slots=slots) >= standbys, what=f"{standbys} warm standbys"
        )

    return wait


def proposed(name: str) -> Step:
    """Wait until policy proposes a move, which the page calls ``name``."""

    def wait(walker: Walker) -> None:
        def waits(view: JobView) -> bool:
            return any(one.state == "proposed" for one in view.migrations.values())

        view = walker.until(waits, what="a proposal")
        (one,) = (one.id for one in view.migrations.values() if one.state == "proposed")
        walker.swaps[name] = one

    return wait


def seen(path: str) -> Step:
    """A page of ours, in a browser."""

    def look(walker: Walker) -> None:
        port, _, name = path.partition("/")
        url = f"http://127.0.0.1:{walker.swaps[port]}/{name}"
        walker.walk(Say(f"curl --silent --retry 20 --retry-delay 1 --fail {url}", "gpt"))

    return look


def declared(walker: Walker) -> None:
    """The policy of docs/concepts/policy.md, with a rule in front that lets people decide."""
    (text,) = (text for kind, text in fences(ROOT / "docs/concepts/policy.md") if kind == "yaml")
    ask = "rules:\n  - name: people decide\n    kind: notice\n    then: wait\n"
    (walker.folder / "policy.yaml").write_text(text.replace("rules:\n", ask))


def opened(name: str) -> Step:
    """Wait until an incident is open, which the page calls ``name``."""

    def wait(walker: Walker) -> None:
        def is_open(view: JobView) -> bool:
            return any(one.closed is None for one in view.incidents.values())

        view = walker.until(is_open, what="an incident")
        walker.swaps[name] = next(one.id for one in view.incidents.values() if one.closed is None)

    return wait


class Webhook:
    """The receiver of a webhook."""

    def start(self, walker: Walker) -> None:
        """Listen until it was heard."""
        heard = self._heard = threading.Event()

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["content-length"])))
                assert event["type"].startswith("dev.trainmover.migration.")
                assert self.headers["webhook-signature"].startswith("v1,")
                self.send_response(204)
                self.end_headers()
                heard.set()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Receiver)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        walker.swaps["127.0.0.1:8080"] = f"127.0.0.1:{self._server.server_port}"

    def heard(self, _: Walker) -> None:
        """Wait for a signed fact."""
        assert self._heard.wait(30)
        self._server.shutdown()
        self._server.server_close()


WEBHOOK = Webhook()


def package(walker: Walker) -> None:
    """The detector of docs/howto/detectors.md as a package, from its own code blocks."""
    first_of_each = dict(reversed(fences(ROOT / "docs/howto/detectors.md")))
    (walker.folder / "my_package.py").write_text(first_of_each["python"])
    build = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    build += '[project]\nname = "my-package"\nversion = "1"\n'
    build += '[tool.hatch.build.targets.wheel]\ninclude = ["my_package.py"]\n'
    (walker.folder / "pyproject.toml").write_text(build + first_of_each["toml"])
    installed = str(walker.folder / "installed")
    walker.env |= {"PIP_TARGET": installed, "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    walker.env["PYTHONPATH"] = installed


def example(walker: Walker) -> None:
    """The reader of the smallest example is in its folder."""
    shutil.copytree(ROOT / "examples/detectors/loss_watcher", walker.folder / "loss_watcher")
    walker.folder = walker.folder / "loss_watcher"


# -- the walks -------------------------------------------------------------------------------------

NOTICE = "trainmover notice send node-3 --kind maintenance"
NOTICE += ' --reason "kernel update" --leaves-in 600'
SERVE = (
    "TRAINMOVER_NOTICES_TOKEN=secret trainmover notice serve --host 0.0.0.0 --port 8476 --job gpt"
)
POST = """curl -H 'Authorization: Bearer secret' -d '{"kind": "preemption", "reason": "spot", """
POST += """"leaves_in_s": 120}' http://notices:8476/v1/machines/node-3/notices"""
TAIL = "trainmover event tail --job gpt --nats nats://127.0.0.1:4222"

STEERED: tuple[Step, ...] = (
    Watch(
        "trainmover run --slots 4 --standbys 2 --automation approval train.py",
        r"job\.formed",
        stay=True,
    ),
    on_this_host,
    warmed(2),
    Say("trainmover status", "gpt: running"),
    Say("trainmover machine ls", "standby"),
    Watch("trainmover watch", "node-0"),
    Say("trainmover watch --once", "node-0"),
    Say("trainmover doctor", "node-0|machines"),
    Say("trainmover doctor --job gpt --nats nats://head:4222"),
    Say("trainmover context set prod --nats nats://head:4222 --job gpt"),
    Say("trainmover context ls", "nats://head:4222"),
    Say("trainmover job ls", "gpt"),
    Say("trainmover --context prod machine ls", "standby"),
    Say("trainmover context use"),
    Say("trainmover context rm prod"),
    Say("trainmover migrate node-1 --dry-run", "node-1"),
    Say("trainmover machine depart --machine node-5 --reason 'kernel update'", "holds no slot"),
    Say("trainmover machine quarantine node-5 --dry-run", "would be"),
    Say("trainmover machine quarantine node-5 --reason 'ECC errors'", "no slot any more"),
    Say("trainmover machine unquarantine node-5 --reason 'DIMM replaced'", "node-5"),
    Say("trainmover automation pause --reason 'benchmark until 14:00'", "paused"),
    Say("trainmover automation resume", "automatic"),
    Say(
        "trainmover automation resume --approval --reason 'let us see what it wants to do'",
        "approval",
    ),
    Watch(
        "python examples/subscribe.py nats://127.0.0.1:4222 gpt",
        then=(Say(NOTICE), proposed("m-0002")),
        shows=r"migration\.proposed",
    ),
    Say("trainmover migration reject m-0002 --reason 'known, will be quiet by noon'"),
    Say("trainmover notice send node-3 --clear"),
    Watch(SERVE, "POST http", then=(Say(POST), proposed("m-0001"))),
    Say("trainmover migration approve m-0001 --dry-run", "node-3"),
    Watch(
        f"{TAIL} --entity migration",
        then=(
            Say("trainmover migration approve m-0001 --reason 'fans are out' --by ada", "pause"),
        ),
        shows=r"migration\.committed",
    ),
    Say("trainmover migration ls", "committed"),
    Say("trainmover migration show m-0001", "ada"),
    Say("trainmover migration show m-0001 --html m-0001.html --trace m-0001.json"),
    Say("trainmover migration show m-0001 --trace out.json"),
    Watch(f"{TAIL} --from-start -o json", "job.formed"),
    Watch(
        "trainmover event tail",
        then=(Say("trainmover automation pause --reason 'benchmark until 14:00'"),),
        shows=r"automation\.changed",
    ),
    WEBHOOK.start,
    Say("export TRAINMOVER_RELAY_SECRET=whsec_$(openssl rand -base64 32)"),
    Watch(
        "trainmover relay --to http://127.0.0.1:8080/hook --type 'migration.*' --job gpt "
        "--nats nats://127.0.0.1:4222",
        then=(WEBHOOK.heard,),
    ),
    Watch("trainmover dashboard", "http://", then=(seen("8787/"),)),
    Say("head -c 18 /dev/urandom | base64 > token"),
    Watch("trainmover dashboard --token-file token", "http://", then=(seen("8787/"),)),
    Watch(
        "trainmover dashboard --job gpt --nats nats://head:4222 --host 0.0.0.0",
        "http://",
        then=(seen("8787/"),),
    ),
    Watch("trainmover metrics", "http://", then=(seen("9478/metrics"),)),
    Say("trainmover metrics --once", "trainmover_step "),
    package,
    Say("pip install .", "my-package-1"),
    Say("trainmover detector ls", "slow_loader"),
    Say("trainmover detector describe slow_loader", "seconds"),
    Watch("trainmover job record yesterday.tmrec.gz --job gpt"),
    Say(
        "trainmover detector replay yesterday.tmrec.gz --detector my_package:SlowLoader",
    ),
    Say(
        "trainmover detector synthesize loader.tmrec.gz --trouble loader_stalls --seed 1",
        "straggler",
    ),
    Say("trainmover detector replay loader.tmrec.gz", "straggler"),
    example,
    Say("pip install .", "loss-watcher"),
    Say("trainmover detector describe loss_watcher", "loss_watcher"),
)

MOVED: tuple[Step, ...] = (
    Say("export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"),
    Watch("trainmover run --slots 4 --standbys 2 train.py --lr 3e-4", r"job\.formed", stay=True),
    on_this_host,
    warmed(2),
    Say("trainmover migrate node-1 --reason maintenance", "pause", answer="y\n"),
    Say("trainmover migration abort m-0001 --reason 'wrong machine'", "refused", code=3),
)

DECLARED: tuple[Step, ...] = (
    declared,
    Say("trainmover policy check policy.yaml", "4 rules"),
    Watch(
        "trainmover run --slots 4 --standbys 2 --policy policy.yaml train.py",
        r"job\.formed",
        stay=True,
    ),
    on_this_host,
    warmed(2),
    Say("trainmover policy show", "two must agree"),
    Say(NOTICE),
    opened("i-0001"),
    Say("trainmover policy explain i-0001", "people decide"),
)

EIGHT: tuple[Step, ...] = (
    Watch("trainmover run --slots 6 --standbys 2 train.py", r"job\.formed", stay=True),
    on_this_host,
    warmed(2, slots=6),
    Say("trainmover migrate node-1 node-3 --to node-6 --to node-7 --yes", "node-7"),
    Say("trainmover drain --label rack=r12 --deadline 2h --dry-run", "No machine has", code=3),
    Say("trainmover drain node-1 node-2 --reason 'new switch' --yes", "finished"),
    # No standby is left: it waits.
    Say("trainmover drain node-0 node-4 --yes --no-wait", "accepted"),
    Say("trainmover drain --pause --reason 'lunch'", "no further wave"),
    Say("trainmover drain --resume", "goes on"),
    Say("trainmover drain --abort --reason 'wrong rack'", "keep their slots"),
)

AFRESH = """trainmover run --slots 4 --standbys 2 train.py
trainmover run --slots 2 --standbys 1 train.py
trainmover run --secure --slots 4 --standbys 2 train.py""".splitlines()
MOVES = """trainmover migrate node-1 --yes
trainmover migrate node-1 --reason 'firmware' --yes
trainmover migrate node-1 node-2 --yes""".splitlines()


def fresh(run: str, move: str, *, slots: int, standbys: int) -> tuple[Step, ...]:
    """A job of its own for one move."""
    started = Watch(run, r"job\.formed", stay=True)
    return started, on_this_host, warmed(standbys, slots=slots), Say(move, "pause")


def a_while(walker: Walker) -> None:
    """The program of the reader who compares ends by itself."""
    program = walker.folder / "train.py"
    program.write_text(TRAIN.replace("1_000_000", "900"))


COMPARED: tuple[Step, ...] = (
    a_while,
    Watch(
        "trainmover run --slots 2 --standbys 1 --metrics moved train.py",
        r"job\.formed",
        then=(
            on_this_host,
            warmed(1, slots=2),
            Say("trainmover migrate node-1 --yes", "pause"),
        ),
        shows="finished",
    ),
    Say("trainmover run --slots 2 --metrics undisturbed train.py"),
    Say(
        "diff <(jq -c '[.step, .loss_hex]' moved/rank-0.jsonl) "
        "<(jq -c '[.step, .loss_hex]' undisturbed/rank-0.jsonl)"
    ),
)


def server(*arguments: str) -> Step:
    """A NATS server of the reader's own."""

    def start(walker: Walker) -> None:
        port = free_port()
        walker.walk(
            Watch(f"nats-server {' '.join(arguments)} -p {port}", "Server is ready", stay=True)
        )
        at(walker, f"nats://127.0.0.1:{port}")

    return start


def machine(name: str) -> tuple[Step, ...]:
    """An agent; here all of them have the same host name."""
    line = (
        "trainmover agent --job gpt --nats nats://head:4222 --slots 4 --standbys 2 "
        "-- train.py --lr 3e-4"
    )

    def called(walker: Walker) -> None:
        walker.env["TRAINMOVER_MACHINE"] = name

    return called, Watch(line, "service.ready", stay=True)


CLUSTER: tuple[Step, ...] = (
    server("-js", "-sd", "store"),
    Watch("trainmover up --job gpt --nats nats://head:4222", "look at it with", stay=True),
    *(step for name in ("head", "n1", "n2", "n3", "n4") for step in machine(name)),
    warmed(1),
    Say("trainmover status --job gpt --nats nats://127.0.0.1:4222", "gpt: running"),
)


def certified(walker: Walker) -> None:
    """The server is called ``nats`` in the page, and is on this host here, with a store of its own.

    Positions are kept: in the store that a page's server has, those of an earlier walk would be.
    """
    store = walker.folder / "store"
    walker.swaps["--host nats"] = f"--host nats --host 127.0.0.1 --store {store}"


def sees_readers(walker: Walker) -> None:
    """Whether a silent command reads is known to the admin alone."""
    walker.credentials = Credentials.of_folder(walker.folder / "security" / "clients" / "admin")


SECURED: tuple[Step, ...] = (
    certified,
    Say("trainmover bus setup --out security --job gpt --machines 6 --host nats"),
    Say("trainmover bus setup --out security --subscriber pager"),
    Say(
        "trainmover bus setup --out security --job gpt --job small --pool spares=spare-1,spare-2",
        "pool-spares",
    ),
    server("-c", "security/server/nats.conf"),
    Say("trainmover bus setup --out security --nats nats://127.0.0.1:4222"),
    Say(
        "export TRAINMOVER_NATS_NKEY=security/clients/operator/nkey "
        "TRAINMOVER_NATS_CA=security/clients/operator/ca.pem"
    ),
    Say("trainmover status --job gpt --nats nats://127.0.0.1:4222", "gpt: forming"),
    Say(
        "trainmover --nats-nkey security/clients/ops/nkey migrate node-1 --yes --job gpt "
        "--nats nats://127.0.0.1:4222",
        "this bus user may not publish 'tm.v1.gpt.request.migrate'",
        code=3,
    ),
    Say(
        "export TRAINMOVER_NATS_NKEY=security/clients/ops/nkey "
        "TRAINMOVER_NATS_CA=security/clients/ops/ca.pem"
    ),
    Say("trainmover status --job gpt --nats nats://127.0.0.1:4222", "gpt: forming"),
    Say(
        "export TRAINMOVER_NATS_NKEY=security/clients/subscribers/pager/nkey "
        "TRAINMOVER_NATS_CA=security/clients/subscribers/pager/ca.pem"
    ),
    sees_readers,
    Watch("python examples/subscribe.py nats://127.0.0.1:4222 gpt pager"),
)

SHORT = {
    "secured": SECURED,
}
LONG = {
    "adopted": fresh(AFRESH[1], MOVES[0], slots=2, standbys=1),
    "steered": STEERED,
    "moved": MOVED,
    "declared": DECLARED,
    "eight": EIGHT,
    "again": fresh(AFRESH[0], MOVES[1], slots=4, standbys=2),
    "secured run": fresh(AFRESH[2], MOVES[2], slots=4, standbys=2),
    "compared": COMPARED,
    "cluster": CLUSTER,
}
