"""The permission matrix, asked of a real server: who may use which subject, and who may not.

Each question is one publish or subscribe by a client with that role's key; the server says no by
an error on the connection before it answers the ping that follows.
"""

from __future__ import annotations

import nats
import pytest
from tests.security.conftest import Secured

from trainmover.bus.credentials import inbox_prefix, public_key
from trainmover.bus.kept import KEPT

EVERYBODY = (
    *("planner", "detector", "machine-node-0", "operator", "ops", "relay"),
    *("subscriber-pager", "pool-spares", "machine-spare-0"),
)

PUBLISH = {
    # decisions: the planner's
    "tm.v1.gpt.migration.proposed": {"planner"},
    "tm.v1.gpt.migration.committed": {"planner"},
    "tm.v1.gpt.job.formed": {"planner"},
    "tm.v1.gpt.machine.quarantined": {"planner"},
    "tm.v1.gpt.machine.lost": {"planner"},
    "tm.v1.gpt.cmd.node-0": {"planner"},
    "tm.v1.gpt.cmd.node-1": {"planner"},
    "$KV.tm_jobs.gpt": {"planner"},
    "$KV.tm_jobs.gpt.incarnation": {"planner"},
    "$KV.tm_migrations.gpt.m-0001": {"planner"},
    "$KV.tm_machines.gpt.node-0.generation": {"planner", "machine-node-0"},
    "$KV.tm_machines.gpt.node-0.more": {"planner"},
    "$KV.tm_machines.gpt.node-1.generation": {"planner"},
    # findings: the detector's
    "tm.v1.gpt.incident.opened": {"detector"},
    "tm.v1.gpt.detector.quarantined": {"detector"},
    # which stages agents run: no machine's key steers the others
    "tm.v1.gpt.job.analysis_placed": {"detector"},
    # what a machine says of itself
    "tm.v1.gpt.machine.registered.node-0": {"machine-node-0"},
    "tm.v1.gpt.step.progress.node-0": {"machine-node-0"},
    "tm.v1.gpt.plan.committed.node-0": {"machine-node-0"},
    "tm.v1.gpt.telemetry.node-0": {"machine-node-0"},
    "tm.v1.gpt.machine.registered.node-1": set(),
    "tm.v1.gpt.step.progress.node-1": set(),
    "tm.v1.gpt.telemetry.node-1": set(),
    "tm.v1.gpt.machine.lost.node-0": set(),
    "tm.v1.gpt.machine.registered": set(),
    # what others know about machines: people's, and their tools'
    "tm.v1.gpt.machine.noticed": {"operator"},
    # a pool: its leader assigns its machines, and asks planners for them
    "tm.v1.spares.pool.assigned": {"pool-spares"},
    "tm.v1.gpt.pool.assigned": {"pool-spares"},
    "tm.v1.gpt.pool.recalled": {"pool-spares"},
    "tm.v1.gpt.request.standbys": {"pool-spares", "operator"},
    "tm.v1.gpt.request.release": {"pool-spares", "operator"},
    "tm.v1.gpt.request.quarantine": {"operator"},
    "tm.v1.spares.cmd.spare-0": {"pool-spares"},
    "tm.v1.gpt.cmd.spare-0": {"planner"},
    "$KV.tm_jobs.spares.pool-lease": {"pool-spares"},
    "$KV.tm_jobs.gpt.planner-lease": {"planner"},
    "tm.v1.spares.request.status": {"operator", "ops"},
    "tm.v1.spares.request.other": set(),
    "tm.v1.spares.job.finished": set(),
    "tm.v1.others.cmd.spare-0": set(),
    "tm.v1.others.pool.assigned": set(),
    "$JS.API.CONSUMER.CREATE.TM_EVENTS.x.tm.v1.spares.pool.seen.*": {
        *("planner", "detector", "operator", "ops", "pool-spares"),
    },
    # a machine of it: it says where it is, and offers itself as one of a pool
    "tm.v1.spares.pool.seen.spare-0": {"machine-spare-0"},
    "tm.v1.spares.pool.seen.spare-1": set(),
    "tm.v1.spares.pool.seen.node-0": set(),
    "tm.v1.gpt.machine.lent.spare-0": {"machine-spare-0"},
    "tm.v1.gpt.machine.lent.spare-1": set(),
    "tm.v1.gpt.machine.lent.node-0": set(),
    "tm.v1.gpt.machine.registered.spare-0": set(),
    "tm.v1.gpt.step.progress.spare-0": {"machine-spare-0"},
    "tm.v1.gpt.telemetry.spare-0": {"machine-spare-0"},
    "tm.v1.gpt.departure.spare-0": {"machine-spare-0"},
    "$KV.tm_machines.gpt.spare-0.generation": {"planner", "machine-spare-0"},
    "$JS.API.CONSUMER.CREATE.TM_COMMANDS.agent:spares:spare-0.tm.v1.spares.cmd.spare-0": {
        "machine-spare-0",
    },
    "$JS.API.CONSUMER.CREATE.TM_COMMANDS.agent:spares:spare-1.tm.v1.spares.cmd.spare-1": set(),
    # requests: people's
    "tm.v1.gpt.request.migrate": {"operator"},
    # a machine's own departure, and no other's
    "tm.v1.gpt.departure.node-0": {"machine-node-0"},
    "tm.v1.gpt.departure.node-1": set(),
    "tm.v1.gpt.request.abort": {"operator"},
    "tm.v1.gpt.request.status": {"operator", "ops"},
    # dead letters: whoever must read facts may say that one is bad
    "tm.v1.dead": {
        *("planner", "detector", "machine-node-0", "relay", "pool-spares", "machine-spare-0"),
    },
    # another job, another tool, no job of ours
    "tm.v1.other.migration.proposed": set(),
    "tm.v1.other.step.progress.node-0": set(),
    "tm.v1.other.request.migrate": set(),
    "$KV.tm_jobs.other": set(),
    "$SYS.REQ.SERVER.PING": set(),
    "_INBOX.planner.anything": set(),
    # streams: made, changed and emptied by the admin alone
    "$JS.API.STREAM.CREATE.TM_EVENTS": set(),
    "$JS.API.STREAM.UPDATE.TM_EVENTS": set(),
    "$JS.API.STREAM.DELETE.TM_EVENTS": set(),
    "$JS.API.STREAM.PURGE.TM_COMMANDS": set(),
    "$JS.API.STREAM.MSG.DELETE.TM_EVENTS": set(),
    "$JS.API.STREAM.CREATE.MINE": set(),
    **{
        f"$JS.API.STREAM.{verb}.{kept.stream}": set()
        for kept in KEPT
        for verb in ("UPDATE", "DELETE", "PURGE", "MSG.DELETE")
    },
    # reading facts, and the copies of those that were pushed out
    **{
        f"$JS.API.CONSUMER.CREATE.{kept.stream}.x": {"planner", "detector", "operator", "ops"}
        for kept in KEPT
    },
    "$JS.API.STREAM.INFO.TM_EVENTS": {
        *("planner", "detector", "operator", "ops", "relay", "subscriber-pager", "pool-spares"),
    },
    "$JS.API.CONSUMER.CREATE.TM_EVENTS.x": {"planner", "detector", "operator", "ops"},
    "$JS.API.CONSUMER.CREATE.TM_EVENTS.x.tm.v1.gpt.job.*": {
        *("planner", "detector", "operator", "ops", "machine-node-0"),
        *("pool-spares", "machine-spare-0"),
    },
    "$JS.API.CONSUMER.CREATE.TM_EVENTS.x.tm.v1.gpt.step.progress.node-1": {
        *("planner", "detector", "operator", "ops"),
    },
    "$JS.API.CONSUMER.CREATE.TM_EVENTS": set(),  # its filter and its name would be free
    "$JS.API.CONSUMER.DELETE.TM_EVENTS.x": set(),
    "$JS.API.CONSUMER.MSG.NEXT.TM_EVENTS.x": set(),
    "$JS.API.DIRECT.GET.TM_EVENTS.tm.v1.gpt.job.formed": set(),
    # the relay's position in the stream is nobody else's to move
    "$JS.API.CONSUMER.CREATE.TM_EVENTS.facts:gpt:relay": {"relay"},
    "$JS.API.CONSUMER.CREATE.TM_EVENTS.facts:gpt:relay.tm.v1.gpt.job.*": {"relay"},
    "$JS.API.CONSUMER.MSG.NEXT.TM_EVENTS.facts:gpt:relay": {"relay"},
    "$JS.ACK.TM_EVENTS.facts:gpt:relay.1.1.1.1.0": {"relay"},
    "$JS.API.CONSUMER.DURABLE.CREATE.TM_EVENTS.facts:gpt:relay": set(),
    # nor is a subscriber's
    "$JS.API.CONSUMER.CREATE.TM_EVENTS.facts:gpt:pager": {"subscriber-pager"},
    "$JS.API.CONSUMER.CREATE.TM_EVENTS.facts:gpt:pager.tm.v1.gpt.job.*": {"subscriber-pager"},
    "$JS.API.CONSUMER.INFO.TM_EVENTS.facts:gpt:pager": {"subscriber-pager"},
    "$JS.API.CONSUMER.MSG.NEXT.TM_EVENTS.facts:gpt:pager": {"subscriber-pager"},
    "$JS.ACK.TM_EVENTS.facts:gpt:pager.1.1.1.1.0": {"subscriber-pager"},
    "$JS.API.CONSUMER.DELETE.TM_EVENTS.facts:gpt:pager": set(),
    "$JS.API.CONSUMER.CREATE.TM_EVENTS.facts:gpt:board": set(),
    "$JS.API.CONSUMER.MSG.NEXT.TM_EVENTS.facts:gpt:board": set(),
    # reading commands: each machine its own
    "$JS.API.CONSUMER.CREATE.TM_COMMANDS.agent:gpt:node-0.tm.v1.gpt.cmd.node-0": {
        "machine-node-0",
    },
    "$JS.API.CONSUMER.CREATE.TM_COMMANDS.agent:gpt:node-0.tm.v1.gpt.cmd.node-1": set(),
    "$JS.API.CONSUMER.CREATE.TM_COMMANDS.agent:gpt:node-0": set(),
    "$JS.API.CONSUMER.DURABLE.CREATE.TM_COMMANDS.agent:gpt:node-0": set(),
    "$JS.API.CONSUMER.MSG.NEXT.TM_COMMANDS.agent:gpt:node-0": {"machine-node-0"},
    "$JS.API.CONSUMER.MSG.NEXT.TM_COMMANDS.agent:gpt:node-1": set(),
    "$JS.ACK.TM_COMMANDS.agent:gpt:node-0.1.1.1.1.0": {"machine-node-0"},
    "$JS.ACK.TM_COMMANDS.agent:gpt:node-1.1.1.1.1.0": set(),
    "$JS.API.STREAM.MSG.GET.TM_COMMANDS": set(),
    # buckets and dead letters, to look at
    "$JS.API.STREAM.MSG.GET.KV_tm_jobs": {
        *("planner", "detector", "operator", "ops", "pool-spares"),
    },
    "$JS.API.STREAM.MSG.GET.KV_tm_machines": {
        *("planner", "operator", "ops", "machine-node-0", "machine-spare-0"),
    },
    # a direct get can put a bare message anywhere: nobody's
    "$JS.API.DIRECT.GET.KV_tm_jobs": set(),
    "$JS.API.DIRECT.GET.KV_tm_jobs.$KV.tm_jobs.gpt": set(),
    "$JS.API.DIRECT.GET.KV_tm_machines.$KV.tm_machines.gpt.node-0.starts": set(),
    "$JS.API.DIRECT.GET.TM_COMMANDS.tm.v1.gpt.cmd.node-1": set(),
    "$JS.API.STREAM.MSG.GET.TM_DEAD": {"operator", "ops"},
}

SUBSCRIBE = {
    "tm.v1.gpt.request.*": {"planner"},
    "tm.v1.gpt.departure.*": {"planner"},
    "tm.v1.gpt.telemetry.*": {"detector", "operator", "ops"},
    "tm.v1.gpt.migration.>": {"operator", "ops"},
    "tm.v1.gpt.step.>": {"operator", "ops"},
    "tm.v1.dead": {"operator", "ops"},
    "tm.v1.gpt.cmd.*": set(),
    "tm.v1.gpt.cmd.node-0": set(),
    "tm.v1.gpt.>": set(),
    "tm.v1.>": set(),
    "tm.v1.other.migration.>": set(),
    ">": set(),
    "$KV.>": set(),
    "$JS.>": set(),
    "$SYS.>": set(),
    "_INBOX.>": set(),
    "_INBOX.admin.x": set(),
    "tm.v1.spares.request.*": {"pool-spares"},
    "tm.v1.spares.pool.>": {"operator", "ops"},
    "tm.v1.spares.cmd.*": set(),
    "$SRV.PING": {
        *("planner", "detector", "machine-node-0", "relay", "pool-spares", "machine-spare-0"),
    },
    "$SRV.PING.trainmover-pool": {"pool-spares"},
    "$SRV.PING.trainmover-planner": {"planner"},
}


class Asker:
    """One client; remembers what the server refused it."""

    def __init__(self, secured: Secured, who: str) -> None:
        self._secured = secured
        self._who = who
        self._refused: list[str] = []

    async def _on_error(self, error: Exception) -> None:
        self._refused.append(str(error).lower())

    async def __aenter__(self) -> Asker:
        self.client = await nats.connect(
            self._secured.server.url,
            error_cb=self._on_error,
            **self._secured.credentials(self._who).options(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def _refuses(self, verb: str, subject: str) -> bool:
        await self.client.flush()
        await self.client.flush()  # the first ping may overtake what the flusher had not written
        told = f'permissions violation for {verb} to "{subject.lower()}"'
        return any(told in each for each in self._refused)

    async def may_publish(self, subject: str) -> bool:
        # An empty body is no fact, no command and no request: nothing comes of it.
        await self.client.publish(subject, b"")
        return not await self._refuses("publish", subject)

    async def may_subscribe(self, subject: str) -> bool:
        subscription = await self.client.subscribe(subject)
        refused = await self._refuses("subscription", subject)
        await subscription.unsubscribe()
        return not refused


@pytest.mark.parametrize("who", EVERYBODY)
async def test_who_may_publish_what(secured: Secured, who: str) -> None:
    async with Asker(secured, who) as asker:
        found = {subject: await asker.may_publish(subject) for subject in PUBLISH}
    assert found == {subject: who in allowed for subject, allowed in PUBLISH.items()}


@pytest.mark.parametrize("who", EVERYBODY)
async def test_who_may_subscribe_to_what(secured: Secured, who: str) -> None:
    async with Asker(secured, who) as asker:
        found = {subject: await asker.may_subscribe(subject) for subject in SUBSCRIBE}
    assert found == {subject: who in allowed for subject, allowed in SUBSCRIBE.items()}


async def test_the_admin_may_do_everything(secured: Secured) -> None:
    async with Asker(secured, "admin") as asker:
        assert await asker.may_publish("tm.v1.gpt.migration.proposed")
        assert await asker.may_subscribe(">")


@pytest.mark.parametrize("who", EVERYBODY)
async def test_replies_are_seen_by_their_asker_alone(secured: Secured, who: str) -> None:
    keys = {}
    for each in (*EVERYBODY, "machine-node-1"):
        seed = secured.credentials(each).nkey
        assert seed is not None
        keys[each] = public_key(seed.read_text().strip())
    async with Asker(secured, who) as asker:
        for other, key in keys.items():
            for inbox in (f"{inbox_prefix(key)}.x", f"_INBOX.{other}.x"):
                assert await asker.may_subscribe(inbox) is (other == who), inbox


async def test_every_subject_of_the_catalogue_has_one_speaker(secured: Secured) -> None:
    """Nothing in the contract is left out of the permissions, or open to two roles."""
    from trainmover.events import CATALOG

    for who in EVERYBODY:
        role, _, which = who.partition("-")
        may = {kind.name for kind in CATALOG.values() if kind.by == role}
        machine = which if role == "machine" else "node-0"
        if machine == "spare-0":  # it offers itself in another way, and to its pool
            may = may - {"machine.registered"} | {"machine.lent"}
        async with Asker(secured, who) as asker:
            for kind in CATALOG.values():
                subject = kind.subject("bert", machine=machine)
                assert await asker.may_publish(subject) is (kind.name in may), (who, subject)
