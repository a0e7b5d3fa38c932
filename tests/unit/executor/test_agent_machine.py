"""Whatever happens, in whatever order: what the agent's state machine never does."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trainmover.commands import (
    AbortMigration,
    BreakStep,
    Command,
    Prepare,
    Recover,
    Release,
    Start,
    Stop,
    Warm,
)
from trainmover.events.executor import PlanCommitted, StepProgress
from trainmover.events.machine import MachineRegistered, WorkerExited
from trainmover.job.plan import Move, Plan
from trainmover.job.topology import Layout, Member, Membership
from trainmover_executor.agent.core import core, effects
from trainmover_executor.agent.core.state import AgentState, Identity
from trainmover_executor.messages.worker import Done, Warmed

ME = "node-9"
OTHERS = ("node-0", "node-1")
AHEAD = st.sampled_from([1, 1, 1, 2, 0, -1])
"""How far a plan's epoch is ahead of ours; 0 and less are stale."""


class AgentMachine(RuleBasedStateMachine):
    """A shell whose processes, sockets and timers are entries in dictionaries."""

    warm_limit: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.state = AgentState(
            me=Identity(
                job="j",
                machine=ME,
                nnodes_min=2,
                nnodes_max=3,
                ranks=2,
                warm_limit=self.warm_limit,
                pid=1,
                host="h",
            )
        )
        self.ports = 1000
        self.sockets: dict[tuple[int | None, int], str] = {}
        self.alive: dict[str, effects.Spawn] = {}
        self.dying: set[str] = set()
        self.spawned: set[str] = set()
        self.timers: list[effects.Event] = []
        self.exits: list[int] = []
        self.sent: list[Command] = []
        self.plans = 0
        self.reported = 0
        self.generations: list[int] = []
        self.epochs = [0]
        self.feed(effects.Begin())

    # -- the shell -----------------------------------------------------------------------------

    def feed(self, event: effects.Event) -> list[effects.Action]:
        before = self.state
        self.state, actions = core.step(before, event)
        assert core.step(before, event) == (self.state, actions)
        for action in actions:
            assert not self.exits or isinstance(action, effects.Log), "it acts after its end"
            self.carry_out(action)
        self.epochs.append(self.state.epoch)
        return list(actions)

    def carry_out(self, action: effects.Action) -> None:
        match action:
            case effects.Bind(generation=generation, slots=slots):
                bound = {}
                for slot in slots:
                    self.ports += 2
                    bound[slot] = (f"h:{self.ports}", f"h:{self.ports + 1}")
                    self.sockets |= {(slot, n): bound[slot][n] for n in range(2)}
                self.feed(effects.Bound(generation, bound))
            case effects.Unbind():
                self.sockets.clear()
            case effects.Spawn():
                assert action.key not in self.spawned
                assert action.generation == self.state.generation
                del self.sockets[action.socket_of, action.local_rank]  # each is used once
                self.spawned.add(action.key)
                self.alive[action.key] = action
            case effects.Forward():
                self.on_forward(action)
            case effects.End(keys=keys):
                assert set(keys) <= set(self.alive)
                self.dying |= set(keys)
            case effects.After(event=event):
                self.timers.append(event)
            case effects.Exit(exit_code=code):
                assert not self.alive, "it leaves processes behind"
                self.exits.append(code)
            case effects.Publish(fact=fact):
                self.on_fact(fact)
            case _:
                pass

    def on_forward(self, action: effects.Forward) -> None:
        assert action.key in self.alive
        assert action.key not in self.dying, "it speaks to a process that it is ending"
        if isinstance(action.message, Prepare | Recover):
            assert action.message.plan.epoch > self.epochs[-1], "it forwards a stale plan"

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, WorkerExited):
            self.reported += 1
        if isinstance(fact, MachineRegistered):
            assert not self.alive, "two incarnations at once"
            self.generations.append(fact.machine.generation)

    @property
    def late(self) -> bool:
        """Whether a run has been long enough to end."""
        return len(self.epochs) > 30

    # -- the world -----------------------------------------------------------------------------

    def member(self, name: str, *, generation: int = 0) -> Member:
        return Member(machine=name, generation=generation, endpoints=("x:1", "x:2"))

    def membership(self, epoch: int, **mine: Member) -> Membership:
        members = [mine.get(f"slot{n}", self.member(OTHERS[n])) for n in range(2)]
        return Membership(
            epoch=epoch, layout=Layout(slots=2, ranks_per_slot=2), members=tuple(members)
        )

    def me(self, endpoints: tuple[str, ...]) -> Member:
        return Member(machine=ME, generation=self.state.generation, endpoints=endpoints)

    def command(self, command: Command) -> list[effects.Action]:
        self.sent.append(command)
        return self.feed(effects.Commanded(command))

    @rule(slot=st.integers(0, 1))
    def start(self, slot: int) -> None:
        endpoints = self.state.endpoints or ("x:1", "x:2")
        job = self.membership(self.state.epoch + 1, **{f"slot{slot}": self.me(endpoints)})
        self.command(Start(generation=self.state.generation, slot=slot, membership=job))

    @rule(slots=st.sampled_from([(0,), (0, 1), (1, 0)]))
    def warm(self, slots: tuple[int, ...]) -> None:
        job = self.membership(self.state.epoch + 1)
        self.command(Warm(generation=self.state.generation, slots=slots, membership=job))

    @precondition(lambda self: self.state.phase in ("standby", "registered"))
    @rule(slot=st.integers(0, 1), failure=st.booleans(), ahead=AHEAD)
    def join(self, slot: int, failure: bool, ahead: int) -> None:
        bay = self.state.bays.get(slot)
        ours = self.me(bay.endpoints if bay and bay.endpoints else ("x:8", "x:9"))
        move = Move(slot=slot, leaver=OTHERS[slot], joiner=ME)
        self.plan(slot, ours, move, failure=failure, ahead=ahead)

    @precondition(lambda self: self.state.phase == "active")
    @rule(slot=st.integers(0, 1), failure=st.booleans(), ahead=AHEAD)
    def leave(self, slot: int, failure: bool, ahead: int) -> None:
        move = Move(slot=slot, leaver=ME, joiner=OTHERS[slot])
        self.plan(slot, self.member(OTHERS[slot]), move, failure=failure, ahead=ahead)

    @precondition(lambda self: self.state.phase == "active")
    @rule(failure=st.booleans(), ahead=AHEAD)
    def stay(self, failure: bool, ahead: int) -> None:
        slot = self.state.slot or 0
        move = Move(slot=1 - slot, leaver="node-7", joiner=OTHERS[1 - slot])
        self.plan(
            slot,
            self.me(self.state.endpoints or ("x:1", "x:2")),
            move,
            failure=failure,
            ahead=ahead,
        )

    def plan(self, slot: int, member: Member, move: Move, *, failure: bool, ahead: int) -> None:
        self.plans += 1
        epoch = max(2, self.state.epoch + ahead)
        ranks = range(2 * move.slot, 2 * move.slot + 2)
        plan = Plan(
            id=f"m{self.plans}",
            job="j",
            kind="failure" if failure else "planned",
            from_epoch=epoch - 1,
            membership=self.membership(epoch, **{f"slot{slot}": member}),
            moves=(move,),
            sources={rank: rank for rank in ranks},
        )
        actions = self.command(Recover(plan=plan) if failure else Prepare(plan=plan))
        if self.state.plan == plan and self.state.live:
            assert any(isinstance(action, effects.Forward) for action in actions)

    @rule(stop=st.booleans(), back=st.integers(0, 1))
    def release(self, stop: bool, back: int) -> None:
        then = "stop" if stop and self.late else "standby"
        generation = max(0, self.state.generation - back)
        command = {"generation": generation, "epoch": self.state.epoch + 1, "then": then}
        self.command(Release.model_validate(command))

    @rule()
    def abort(self) -> None:
        self.command(AbortMigration(migration=f"m{self.plans}", epoch=9, reason="r"))

    @rule()
    def break_step(self) -> None:
        self.command(BreakStep(epoch=self.state.epoch, reason="r"))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        self.command(data.draw(st.sampled_from(self.sent)))

    @precondition(lambda self: self.late)
    @rule(code=st.sampled_from([None, 130, 143]))
    def stop(self, code: int | None) -> None:
        if code is None:
            self.command(Stop(reason="over"))
        else:
            self.feed(effects.Terminate(code))

    @precondition(lambda self: self.late)
    @rule(failed=st.booleans())
    def job_over(self, failed: bool) -> None:
        self.feed(effects.JobOver(failed=failed))

    # -- the workers ---------------------------------------------------------------------------

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), code=st.sampled_from([0, 1, None]))
    def die(self, data: st.DataObject, code: int | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.alive)))
        del self.alive[key]
        told = key in self.dying
        self.dying.discard(key)
        before = self.reported
        self.feed(effects.Exited(key, code, None if code is not None else 9))
        assert not (told and self.reported > before), "it reports a death that it ordered"

    @precondition(lambda self: self.dying)
    @rule()
    def all_the_dying_die(self) -> None:
        for key in sorted(self.dying):
            del self.alive[key]
            self.dying.discard(key)
            self.feed(effects.Exited(key, None, 9))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), kind=st.sampled_from(["done", "progress"]))
    def speak(self, data: st.DataObject, kind: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.alive)))
        rank = self.alive[key].rank
        if kind == "done":
            self.feed(effects.Said(key, Done(rank=rank, step=1)))
        else:
            fact = StepProgress(machine=ME, rank=rank, epoch=1, step=1, step_s=1)
            self.feed(effects.Reported(key, fact))

    @precondition(lambda self: self.state.phase == "standby" and self.alive)
    @rule()
    def warm_up(self) -> None:
        for key, order in sorted(self.alive.items()):
            report = Warmed(rank=order.rank, shadow_iterations=3, warm_s=1)
            self.feed(effects.Said(key, report))

    @precondition(lambda self: self.state.plan is not None)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        plan = self.state.plan
        assert plan is not None
        for key in sorted(self.alive):
            if data.draw(st.booleans()) and key in self.alive:
                fact = PlanCommitted(
                    migration=plan.id,
                    machine=ME,
                    rank=self.alive[key].rank,
                    epoch=plan.epoch,
                    step=1,
                )
                self.feed(effects.Reported(key, fact))

    @precondition(lambda self: self.timers)
    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.timers))
        self.timers.remove(event)
        if not self.exits:
            self.feed(event)

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def books_and_processes_agree(self) -> None:
        assert set(self.state.workers) == set(self.alive)
        assert {k for k, w in self.state.workers.items() if w.ending} == self.dying

    @invariant()
    def incarnations_follow_each_other(self) -> None:
        assert self.generations == list(range(len(self.generations)))
        assert self.epochs == sorted(self.epochs)  # INV-EPOCH-MONOTONE

    @invariant()
    def it_ends_once(self) -> None:
        assert len(self.exits) <= 1
        assert bool(self.exits) == (self.state.phase == "finished")

    @invariant()
    def an_active_machine_fills_one_slot(self) -> None:
        if self.state.phase == "active":
            assert {worker.slot for worker in self.state.live} <= {self.state.slot}

    @invariant()
    def no_port_is_open_for_nobody(self) -> None:
        if self.state.phase in ("active", "ending", "finished"):
            assert not self.sockets

    @invariant()
    def it_is_never_stuck(self) -> None:
        if self.state.phase == "ending":
            assert self.alive or self.timers


class FrugalMachine(AgentMachine):
    """One that keeps processes for a single slot."""

    warm_limit = 1

    @invariant()
    def memory_holds(self) -> None:
        assert len(self.state.kept) <= 1


SETTINGS = settings(max_examples=200, stateful_step_count=50, deadline=None)
AgentMachine.TestCase.settings = FrugalMachine.TestCase.settings = SETTINGS
TestAgentMachine = AgentMachine.TestCase
TestFrugalMachine = FrugalMachine.TestCase
