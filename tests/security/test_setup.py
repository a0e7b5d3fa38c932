"""``trainmover bus setup``, and a server that runs from what it wrote."""

from __future__ import annotations

import json
import signal
import ssl
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.support.cli import command

from trainmover.bus.credentials import CA, CERT, NKEY, Credentials
from trainmover.bus.embedded import EmbeddedServer, find_server
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import BUCKETS
from trainmover.errors import ConfigError, InvalidIdError, PermissionDeniedError
from trainmover.security.authority import Issued, covers, make_authority, make_server
from trainmover.security.folder import Setup, client_folder, write
from trainmover.security.roles import SINGLE_ROLES, Role, User
from trainmover.testing import running_server
from trainmover.tracing.observe import new_event


def setup(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command("bus", "setup", *arguments)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class TestFiles:
    def test_a_second_time_changes_nothing(self, tmp_path: Path) -> None:
        arguments = ("--out", str(tmp_path), "--job", "gpt", "--machines", "2", "-o", "json")
        first = setup(*arguments)
        assert first.returncode == 0, first.stderr
        assert json.loads(first.stdout)["config_changed"] is True
        before = contents(tmp_path)
        again = setup(*arguments)
        assert json.loads(again.stdout)["config_changed"] is False
        assert contents(tmp_path) == before

    def test_machines_and_standbys_are_numbered(self, tmp_path: Path) -> None:
        done = setup("--out", str(tmp_path), "--job", "gpt", "--machines", "2", "--standbys", "2")
        assert done.returncode == 0, done.stderr
        made = sorted(path.name for path in (tmp_path / "clients" / "machines").iterdir())
        assert made == ["node-0", "node-1", "standby-1", "standby-2"]

    def test_machines_are_added_and_keys_kept(self, tmp_path: Path) -> None:
        setup("--out", str(tmp_path), "--job", "gpt", "--machines", "2")
        before = contents(tmp_path)
        added = setup("--out", str(tmp_path), "--machine", "standby-7")
        assert added.returncode == 0, added.stderr
        assert "SIGHUP" in added.stderr
        after = contents(tmp_path)
        assert "clients/machines/standby-7/nkey" in after
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {"server/auth.conf", "setup.json"}
        assert after["clients/machines/standby-7/link-gpt"] == before["links/gpt"]

    def test_secrets_are_readable_by_their_owner_alone(self, tmp_path: Path) -> None:
        setup("--out", str(tmp_path / "made"), "--job", "gpt", "--machines", "1")
        secrets = [
            path
            for pattern in ("nkey", "*.key", "link-*", "links/*")
            for path in tmp_path.rglob(pattern)
        ]
        assert len(secrets) == len(SINGLE_ROLES) + 1 + 4
        for path in secrets:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path

    def test_a_client_folder_has_all_that_one_client_needs(self, tmp_path: Path) -> None:
        setup("--out", str(tmp_path), "--job", "gpt", "--machines", "1")
        folder = tmp_path / "clients" / "machines" / "node-0"
        assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "link-gpt", "nkey"]
        assert len((folder / "link-gpt").read_text().strip()) == 64

    @pytest.mark.parametrize(
        ("arguments", "hint"),
        [
            ((), "--out FOLDER"),
            (("--out", "{}"), "--job NAME"),
            (("--out", "{}", "--job", "a.b"), "job name 'a.b'"),
            (("--out", "{}", "--job", "gpt", "--machine", "a b"), "machine name 'a b'"),
            (("--out", "/proc/nowhere", "--job", "gpt"), "cannot write"),
        ],
    )
    def test_usage_errors(self, tmp_path: Path, arguments: tuple[str, ...], hint: str) -> None:
        done = setup(*(each.format(tmp_path) for each in arguments))
        assert done.returncode == 2, done
        assert hint in done.stderr

    def test_names_are_checked_before_anything_is_written(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidIdError):
            write(tmp_path, Setup(jobs=("gpt",), machines=("*",)))
        assert not list(tmp_path.iterdir())

    def test_a_folder_that_is_not_ours_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "setup.json").write_text("{}")
        done = setup("--out", str(tmp_path), "--job", "gpt")
        assert done.returncode == 2
        assert "setup.json cannot be used" in done.stderr


class TestCertificates:
    def test_a_new_host_gets_a_new_certificate_from_the_same_authority(
        self, tmp_path: Path
    ) -> None:
        first = Setup(jobs=("gpt",))
        write(tmp_path, first)
        before = contents(tmp_path)
        more = first.model_copy(update={"hosts": (*first.hosts, "nats", "10.0.0.7")})
        assert write(tmp_path, more).config_changed
        after = contents(tmp_path)
        assert before["ca/ca.pem"] == after["ca/ca.pem"]
        assert before["server/server.pem"] != after["server/server.pem"]
        assert covers(after["server/server.pem"], ["nats", "10.0.0.7", "localhost"])

    def test_a_certificate_is_renewed_in_time(self) -> None:
        made = make_server(make_authority(), ["localhost"])
        now = datetime.now(UTC)
        assert covers(made.certificate, ["localhost"], now=now + timedelta(days=700))
        assert not covers(made.certificate, ["localhost"], now=now + timedelta(days=800))
        assert not covers(made.certificate, ["other"])

    def test_without_the_authoritys_key_nothing_can_be_signed(self, tmp_path: Path) -> None:
        write(tmp_path, Setup(jobs=("gpt",)))
        (tmp_path / "ca" / "ca.key").unlink()
        write(tmp_path, Setup(jobs=("gpt",), machines=("w",)))  # nothing to sign
        with pytest.raises(ConfigError, match="certificate of your own authority"):
            write(tmp_path, Setup(jobs=("gpt",), hosts=("elsewhere",)))


class Server:
    """A server that runs from the files that ``setup`` wrote, as a deployment's would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = folder / "server" / "nats.conf"
        config.write_text(config.read_text().replace("http: 127.0.0.1:8222", "http: 127.0.0.1:-1"))
        self.process = subprocess.Popen(
            [str(find_server()), "-c", str(config)],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            port = self.until("Listening for client connections on").rpartition(":")[2]
            self.until("Server is ready")
        except BaseException:
            self.__exit__()
            raise
        self.url = f"nats://127.0.0.1:{port}"

    def until(self, words: str) -> str:
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if words in line:
                return line.strip()
        raise AssertionError("".join(lines))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def credentials(self, role: Role, machine: str = "") -> Credentials:
        return Credentials.of_folder(client_folder(self.folder, User(role, machine)))


def made(folder: Path, *more: str) -> Path:
    done = setup(
        *("--out", str(folder), "--job", "gpt", "--machines", "1"),
        *("--listen", "127.0.0.1:-1", "--store", str(folder / "store"), *more),
    )
    assert done.returncode == 0, done.stderr
    return folder


async def test_a_server_runs_from_its_files_and_gets_its_streams(tmp_path: Path) -> None:
    with Server(made(tmp_path)) as server:
        for _ in range(2):
            done = setup("--out", str(tmp_path), "--nats", server.url)
            assert done.returncode == 0, done.stderr
        async with NatsBus(server.url, credentials=server.credentials(Role.ADMIN)) as bus:
            for name in ("TM_EVENTS", "TM_COMMANDS", "TM_DEAD", *(f"KV_{b}" for b in BUCKETS)):
                assert (await bus.client.jetstream().stream_info(name)).config.name == name


async def test_a_machine_that_is_added_may_connect_after_a_reload(tmp_path: Path) -> None:
    from tests.unit import factories as make

    with Server(made(tmp_path)) as server:
        setup("--out", str(tmp_path), "--nats", server.url)
        setup("--out", str(tmp_path), "--machine", "node-9")
        new = server.credentials(Role.MACHINE, "node-9")
        with pytest.raises(PermissionDeniedError):
            async with NatsBus(server.url, credentials=new, connect_timeout=0.5):
                pass
        server.process.send_signal(signal.SIGHUP)
        server.until("Reloaded")
        async with NatsBus(server.url, credentials=new) as bus:
            fact = make.registered("node-9")
            await bus.publish(new_event(job="gpt", source="/machine/node-9", payload=fact))


async def test_a_key_that_is_taken_back_does_not_come_again(tmp_path: Path) -> None:
    with Server(made(tmp_path)) as server:
        setup("--out", str(tmp_path), "--nats", server.url)
        setup("--out", str(tmp_path), "--machine", "node-9")
        stolen = {}
        for role, machine in ((Role.MACHINE, "node-9"), (Role.OPERATOR, "")):
            credentials = server.credentials(role, machine)
            assert credentials.nkey is not None
            copy = tmp_path / f"stolen-{role}"
            copy.write_bytes(credentials.nkey.read_bytes())
            stolen[role] = replace(credentials, nkey=copy)
        server.process.send_signal(signal.SIGHUP)
        server.until("Reloaded server configuration")
        for each in stolen.values():
            async with NatsBus(server.url, credentials=each) as bus:
                await bus.ping()
        gone = setup("--out", str(tmp_path), "--revoke", "node-9", "--revoke", "operator")
        assert gone.returncode == 0, gone.stderr
        setup("--out", str(tmp_path))
        server.process.send_signal(signal.SIGHUP)
        server.until("Reloaded server configuration")
        for each in stolen.values():
            with pytest.raises(PermissionDeniedError):
                async with NatsBus(server.url, credentials=each, connect_timeout=0.5):
                    pass
        async with NatsBus(server.url, credentials=server.credentials(Role.OPERATOR)) as bus:
            await bus.ping()
        assert not (tmp_path / "clients" / "machines" / "node-9" / "nkey").exists()


def test_a_subscriber_gets_a_key_until_it_is_taken_back(tmp_path: Path) -> None:
    made(tmp_path, "--subscriber", "pager")
    key = tmp_path / "clients" / "subscribers" / "pager" / "nkey"
    first = key.read_text()
    setup("--out", str(tmp_path))
    assert key.read_text() == first
    assert setup("--out", str(tmp_path), "--revoke", "pager").returncode == 0
    assert not key.exists()
    setup("--out", str(tmp_path), "--subscriber", "pager")
    assert key.read_text() != first


def test_a_pool_gets_keys_and_every_jobs_secrets(tmp_path: Path) -> None:
    everything = ("--out", str(tmp_path), "--job", "gpt", "--machines", "1")
    done = setup(*everything, "--pool", "spares=spare-1,spare-2")
    assert done.returncode == 0, done.stderr
    clients = tmp_path / "clients"
    leader = clients / "pools" / "spares" / "nkey"
    machine = clients / "machines" / "spare-1"
    before = contents(tmp_path)
    assert leader.exists()
    # A job and a machine more: keys stay, and whoever may be assigned to it knows its secret.
    done = setup("--out", str(tmp_path), "--job", "new", "--pool", "spares=spare-3")
    assert done.returncode == 0, done.stderr
    after = contents(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"server/auth.conf", "setup.json"}
    assert sorted(path.name for path in machine.iterdir()) == [
        *("ca.pem", "link-gpt", "link-new", "nkey"),
    ]
    assert (machine / "link-new").read_text() == (tmp_path / "links" / "new").read_text()
    key = (machine / "nkey").read_text()
    # Taken back: the machine's until it is named again, the leader's to be made anew.
    done = setup("--out", str(tmp_path), "--revoke", "spare-1", "--revoke", "spares")
    assert done.returncode == 0, done.stderr
    assert "--rotate JOB" in done.stderr
    assert [path.name for path in machine.iterdir()] == ["ca.pem"]
    assert leader.read_bytes() != before["clients/pools/spares/nkey"]
    setup("--out", str(tmp_path), "--pool", "spares=spare-1")
    assert (machine / "nkey").read_text() != key


@pytest.mark.parametrize(
    ("pool", "hint"),
    [
        ("gpt=spare-1", "a pool cannot be named 'gpt'"),
        ("spares=node-0", "machine 'node-0' is named twice"),
        ("a.b=spare-1", "pool name 'a.b'"),
        ("spares=a b", "machine name 'a b'"),
    ],
)
def test_a_pool_and_its_machines_have_names_of_their_own(
    tmp_path: Path, pool: str, hint: str
) -> None:
    done = setup("--out", str(tmp_path), "--job", "gpt", "--machines", "1", "--pool", pool)
    assert done.returncode == 2
    assert hint in done.stderr
    assert not (tmp_path / "clients").exists()


@pytest.mark.parametrize("name", ["relay", "node-0", "a.b"])
def test_a_subscriber_has_a_name_that_nobody_else_has(tmp_path: Path, name: str) -> None:
    """The relay's position has the relay's name."""
    done = setup(*("--out", str(tmp_path), "--job", "gpt", "--machines", "1", "--subscriber", name))
    assert done.returncode == 2
    assert name in done.stderr
    assert not (tmp_path / "clients").exists()


def test_a_count_does_not_bring_back_a_key_that_was_taken_out(tmp_path: Path) -> None:
    """A deployment says how many machines there are each time that it starts."""
    everything = ("--out", str(tmp_path), "--job", "gpt", "--machines", "2", "--standbys", "1")
    home = tmp_path / "clients" / "machines"
    for name in ("node-1", "standby-1"):
        setup(*everything)
        assert setup("--out", str(tmp_path), "--revoke", name).returncode == 0
        assert [path.name for path in (home / name).iterdir()] == ["ca.pem"]
    setup(*everything)
    assert not (home / "node-1" / "nkey").exists()
    assert not (home / "standby-1" / "nkey").exists()
    setup("--out", str(tmp_path), "--machine", "node-1")
    setup(*everything)
    assert (home / "node-1" / "nkey").exists()
    assert not (home / "standby-1" / "nkey").exists()


def test_links_get_a_new_secret_and_the_one_before_lasts_until_the_next(tmp_path: Path) -> None:
    setup("--out", str(tmp_path), "--job", "gpt", "--machines", "2")
    file = tmp_path / "clients" / "machines" / "node-1" / "link-gpt"
    first = file.read_text().split()
    seen = [first]
    for _ in range(2):
        assert setup("--out", str(tmp_path), "--rotate", "gpt").returncode == 0
        seen.append(file.read_text().split())
    assert [len(each) for each in seen] == [1, 2, 2]
    assert seen[1][1] == first[0]
    assert seen[2][1] == seen[1][0]
    assert len({each for pair in seen for each in pair}) == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    setup("--out", str(tmp_path))
    assert file.read_text().split() == seen[2]
    refused = setup("--out", str(tmp_path), "--rotate", "bert")
    assert refused.returncode == 2
    assert "gpt" in refused.stderr


def test_servers_know_each_other_by_a_password_that_is_in_their_file_alone(tmp_path: Path) -> None:
    """It was on their command lines, for everybody on the host to read."""
    folder = made(tmp_path, "--route", "127.0.0.1:1", "--route", "127.0.0.1:2")
    password = (folder / "route").read_text().strip()
    config = folder / "server" / "cluster.conf"
    assert config.read_text().count(password) == 3
    for secret in (config, folder / "route"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert password not in setup("--out", str(folder), "-o", "json").stdout
    assert config.read_text().count(password) == 3
    checked = subprocess.run(
        [str(find_server()), "-t", "-c", str(config)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    refused = setup("--out", str(folder), "--route", "nowhere")
    assert refused.returncode == 2
    assert "HOST:PORT" in refused.stderr


def test_nobody_to_take_a_key_from(tmp_path: Path) -> None:
    assert setup("--out", str(tmp_path), "--revoke", "x").returncode == 2
    setup("--out", str(tmp_path), "--job", "gpt", "--machines", "1")
    before = contents(tmp_path)
    refused = setup("--out", str(tmp_path), "--revoke", "node-7")
    assert refused.returncode == 2
    assert "node-0" in refused.stderr
    assert contents(tmp_path) == before


async def test_who_does_not_trust_the_certificate_does_not_connect(tmp_path: Path) -> None:
    with Server(made(tmp_path)) as server:
        key = server.credentials(Role.OPS).nkey
        with pytest.raises(PermissionDeniedError, match="Set TRAINMOVER_NATS_CA"):
            async with NatsBus(server.url, credentials=Credentials(nkey=key)):
                pass
        strange = tmp_path / "strange.pem"
        strange.write_bytes(make_authority().certificate)
        with pytest.raises(PermissionDeniedError, match=r"strange\.pem does not vouch for it"):
            async with NatsBus(server.url, credentials=Credentials(nkey=key, ca=strange)):
                pass


def make_client(authority: Issued) -> bytes:
    """A client's certificate and its key, as an authority of somebody else's makes it."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(pem) + private


@pytest.fixture
def mutual(tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """A server that wants to see certificates: its URL, its authority, a client's certificate."""
    authority = make_authority()
    server = make_server(authority, ["localhost"])
    ca, cert, key, ours = (tmp_path / name for name in ("ca.pem", "s.pem", "s.key", "ours.pem"))
    ca.write_bytes(authority.certificate)
    cert.write_bytes(server.certificate)
    key.write_bytes(server.key)
    ours.write_bytes(make_client(authority))
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ca}", verify: true }}'
    with EmbeddedServer(extra_config=tls, host="localhost") as running:
        yield running.url, ca, ours


async def test_a_server_may_ask_for_a_certificate(mutual: tuple[str, Path, Path]) -> None:
    url, ca, ours = mutual
    async with NatsBus(url, credentials=Credentials(ca=ca, cert=ours)) as bus:
        await bus.ping()
    with pytest.raises(PermissionDeniedError, match=r"asks for one .*Set TRAINMOVER_NATS_CERT"):
        await NatsBus(url, credentials=Credentials(ca=ca), connect_timeout=1.0).__aenter__()
    ours.write_bytes(make_client(make_authority()))
    with pytest.raises(PermissionDeniedError, match=r"does not take .*ours\.pem"):
        await NatsBus(
            url, credentials=Credentials(ca=ca, cert=ours), connect_timeout=1.0
        ).__aenter__()


def test_a_certificate_without_its_key_is_named(mutual: tuple[str, Path, Path]) -> None:
    _, ca, ours = mutual
    ours.write_bytes(ca.read_bytes())
    with pytest.raises(ConfigError, match=r"ours\.pem .*a certificate and its key, both PEM"):
        Credentials.from_environment({CERT: str(ours)}).options()


async def test_tls_is_demanded_by_who_has_an_authority(tmp_path: Path) -> None:
    """A server without TLS in the way of one with it must not get our key's signature."""
    write(tmp_path, Setup(jobs=("gpt",)))
    credentials = Credentials.of_folder(tmp_path / "clients" / "ops")
    with running_server() as server, pytest.raises(PermissionDeniedError, match="encrypt"):
        async with NatsBus(server.url, credentials=credentials):
            pass


@pytest.mark.parametrize(
    ("content", "hint"),
    [("SUNOTASEED", "does not hold the seed"), (None, "cannot read"), ("", "does not hold")],
)
async def test_a_key_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | None, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "nkey"
    if content is not None:
        key.write_text(content)
    monkeypatch.setenv(NKEY, str(key))
    with pytest.raises(ConfigError, match=hint) as caught:
        async with NatsBus("nats://127.0.0.1:1"):
            pass
    assert str(key) in str(caught.value)


def test_an_authority_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no PEM")
    with pytest.raises(ConfigError, match="holds no PEM certificate"):
        Credentials.from_environment({CA: str(file)}).options()


def test_credentials_travel_to_children_by_the_environment(tmp_path: Path) -> None:
    write(tmp_path, Setup(jobs=("gpt",)))
    given = Credentials.of_folder(tmp_path / "clients" / "planner")
    assert Credentials.from_environment(given.environment()) == given
    options: dict[str, Any] = given.options()
    assert isinstance(options["tls"], ssl.SSLContext)
    assert options["inbox_prefix"].startswith("_INBOX.U")
