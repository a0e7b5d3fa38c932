"""What a program changes and nobody carries: refused, or said once, while its first steps run."""

from __future__ import annotations

import inspect
import itertools
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from torch import nn
from torch.utils.data import DataLoader

from trainmover.errors import ConfigError
from trainmover_executor.checks.left_behind import LeftBehind
from trainmover_executor.checks.lookout import Lookout
from trainmover_executor.checks.strangers import refuse_strange_steps
from trainmover_executor.program.looking import modules
from trainmover_executor.program.looking.modules import names_of
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.training import TrainingState


@pytest.fixture(autouse=True)
def _nothing_was_seen_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes that another test found are looked at in the whole process."""
    monkeypatch.setattr(modules, "_seen_to_change", set())


Row = namedtuple("Row", "sum count")


@dataclass(slots=True)
class Meter:
    sum: float = 0.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.calls = self.stage = 0


class Container(torch.optim.Optimizer):
    """What torchtitan puts around the optimizers of a model's parts."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        parameters = [
            p for each in optimizers for group in each.param_groups for p in group["params"]
        ]
        super().__init__(parameters, {})
        self.optimizers = optimizers

    def step(self, closure: Any = None) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


class Training:
    """A session's part of a loop, with a frame in the place of the program's."""

    def __init__(self, **others: Any) -> None:
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.state = TrainingState(models=[self.model], optimizers=[self.optimizer], others=others)
        self.variables = LoopVariables([*others.values()])
        self.lookout = Lookout(self.state, self.variables)
        self.committed, self.watched = 0, 10

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model.line(torch.randn(1, 2)).sum().backward()
        self.optimizer.step()

    def run(self, body: Callable[[SimpleNamespace], None], *, steps: int = 3, **held: Any) -> None:
        """A loop that holds ``held`` as attributes of one of its variables."""
        own = SimpleNamespace(**held)
        frame = inspect.currentframe()
        assert frame is not None
        self.look(frame)
        for _ in range(steps):
            self.step()
            body(own)
            self.committed += 1
            self.look(frame)
        assert own is not None  # it is needed on

    def look(self, frame: FrameType) -> None:
        if self.committed < self.watched:
            self.variables.changed(frame)
        self.lookout.look(frame, committed=self.committed)


def moved_on(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data.mul_(0.5)  # which its version does not tell


def optimized(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()


class TestStrangers:
    @pytest.mark.parametrize(
        ("make", "change", "words"),
        [
            (
                lambda _: nn.Linear(2, 2),
                moved_on,
                r"the Linear in .*own\.thing .*model=\[\.\.\., t",
            ),
            (lambda _: nn.BatchNorm1d(2), lambda n: n(torch.ones(3, 2)), "the BatchNorm1d in"),
            (lambda _: torch.optim.SGD([torch.ones(1)], momentum=0.9), optimized, "the SGD in"),
        ],
    )
    def test_what_changes_and_is_not_known_is_refused(
        self, make: Any, change: Any, words: str
    ) -> None:
        training = Training()
        with pytest.raises(ConfigError, match=words) as raised:
            training.run(lambda own: change(own.thing), thing=make(training))
        assert f"{__file__}:" in str(raised.value)
        assert training.committed == 1

    def test_a_skeleton_without_data_is_left_alone(self) -> None:
        training = Training()
        training.run(lambda _: None, base=nn.BatchNorm1d(2, device="meta"))
        assert training.committed == 3

    @pytest.mark.parametrize(("at", "ends"), [(20, True), (1200, False)])
    def test_what_changes_late_is_noticed_then(self, at: int, ends: bool) -> None:
        training = Training()

        def body(own: SimpleNamespace) -> None:
            if training.committed == at:
                own.target.load_state_dict(training.model.line.state_dict())

        with structlog.testing.capture_logs() as logs:
            if ends:
                with pytest.raises(ConfigError, match=r"the Linear in .*target"):
                    training.run(body, steps=at + 2, target=nn.Linear(2, 2))
            else:
                training.run(body, steps=at + 2, target=nn.Linear(2, 2))
                [line] = logs
                assert "the Linear in" in line["reason"]
        assert training.committed == (at + 1 if ends else at + 2)

    def test_what_is_made_late_is_looked_at_then(self) -> None:
        training = Training()
        training.watched = 50

        def body(own: SimpleNamespace) -> None:
            if training.committed == 40:
                own.probe = nn.Linear(2, 2)
            if training.committed > 40:
                moved_on(own.probe)

        with pytest.raises(ConfigError, match=r"the Linear in .*probe"):
            training.run(body, steps=50)
        assert training.committed == 42

    def test_losses_made_in_each_step_are_not_looked_for(self) -> None:
        training = Training()

        def body(own: SimpleNamespace) -> None:
            own.loss = nn.MSELoss()

        training.run(body, steps=5)
        assert training.variables.newcomers.count == 2, "the model and the optimizer"

    def test_a_scheduler_is_carried_wherever_the_program_has_it(self) -> None:
        training = Training()
        scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 5)
        training.run(lambda own: own.thing.step(), thing=scheduler)

    def test_what_does_not_change_or_is_known_is_let_be(self) -> None:
        average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
        training = Training(average=average)

        def body(own: SimpleNamespace) -> None:
            own.teacher(torch.ones(1, 2))
            own.average.update_parameters(own.average.module)

        training.run(
            body,
            teacher=nn.Linear(2, 2).eval(),
            average=average,
            inner=average.module,
            part=training.model.line,
            wrapper=nn.Sequential(training.model),
            optimizer=training.optimizer,
        )

    def test_schedulers_of_a_known_one_are_known(self) -> None:
        training = Training()
        parts: list[Any] = [
            torch.optim.lr_scheduler.LinearLR(training.optimizer),
            torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.9),
        ]
        whole = torch.optim.lr_scheduler.SequentialLR(training.optimizer, parts, [2])
        training.state.others["scheduler"] = whole
        training.run(lambda _: whole.step(), first=parts[0], whole=whole)

    def test_state_that_comes_with_the_first_step_is_checked_then(self) -> None:
        training = Training()

        def body(_: Any) -> None:
            training.optimizer.state[training.model.line.weight]["hook"] = print

        with pytest.raises(ConfigError, match="hook is a builtins"):
            training.run(body)

    def test_a_number_that_an_optimizer_keeps_to_itself_is_carried(self) -> None:
        training = Training()
        training.optimizer.rounds = 0  # type: ignore[attr-defined]

        def body(_: Any) -> None:
            training.optimizer.rounds += 1  # type: ignore[attr-defined]

        training.run(body)
        (numbers,) = training.state.tree()["numbers"]
        assert numbers == {"rounds": training.optimizer.rounds}  # type: ignore[attr-defined]

    @pytest.mark.parametrize("kept", [[0], {"a": [torch.zeros(3)]}])
    def test_lists_and_tensors_that_it_keeps_to_itself_are_refused(self, kept: Any) -> None:
        training = Training()
        training.optimizer.kept = kept  # type: ignore[attr-defined]

        def body(_: Any) -> None:
            if isinstance(kept, list):
                kept[0] += 1
            else:
                kept["a"][0].add_(1)

        with pytest.raises(ConfigError, match="AdamW keeps kept, which changes"):
            training.run(body)

    def test_a_step_of_an_optimizer_that_was_made_later_is_refused(self) -> None:
        training = Training()
        refuse_strange_steps(training.state)
        training.step()
        optimized(torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1))
        with pytest.raises(ConfigError, match=r"the SGD that takes a step at .* trains parameters"):
            optimized(torch.optim.SGD(training.model.parameters(), 0.1))

    def test_a_container_of_the_sessions_optimizers_may_take_their_steps(self) -> None:
        training = Training()
        refuse_strange_steps(training.state)
        container = Container([training.optimizer])
        container.step()
        container.optimizers.append(torch.optim.SGD(training.model.parameters(), 0.1))
        with pytest.raises(ConfigError, match=r"the SGD that takes a step at"):
            container.step()


class TestLeftBehind:
    def said(self, body: Callable[[SimpleNamespace], None], **held: Any) -> list[dict[str, Any]]:
        with structlog.testing.capture_logs() as logs:
            Training().run(body, **held)
        return logs

    @pytest.mark.parametrize(
        ("make", "change", "holds"),
        [
            (lambda: np.zeros(90000), lambda own: own.it.__iadd__(1), "a ndarray of 90000 items"),
            (lambda: [0.0] * 20000, lambda own: own.it.append(1.0), "a list of 20001 items"),
            (
                lambda: dict.fromkeys(range(20000)),
                lambda own: own.it.popitem(),
                "a dict of 19999 items",
            ),
            (lambda: None, lambda own: setattr(own, "it", [0.0] * 20000), "a list of 20000 items"),
            (
                nn.MSELoss,
                lambda own: setattr(own, "it", nn.L1Loss() if own.it else None),
                "a L1Loss",
            ),
            (lambda: lambda: 1, lambda own: setattr(own, "it", lambda: 2), "a function"),
        ],
    )
    def test_what_cannot_be_carried_and_changes_is_said_once(
        self, make: Any, change: Any, holds: str
    ) -> None:
        [line] = self.said(change, it=make())
        assert line["log_level"] == "warning"
        assert line["variable"].endswith((".it", "['it']"))
        assert line["holds"] == holds
        assert line["loop"].startswith(f"{__file__}:")
        assert "session.track(...)" in line["cure"]

    @pytest.mark.parametrize(
        ("make", "holds"),
        [
            (lambda: iter(DataLoader(range(9))), "_SingleProcessDataLoaderIter"),
            (lambda: itertools.cycle([1, 2]), "an iterator (cycle)"),
        ],
    )
    def test_an_iterator_of_another_loader_is_said(self, make: Any, holds: str) -> None:
        [line] = self.said(lambda own: next(own.it), it=make())
        assert holds in line["holds"]
        assert "session.cycle(loader)" in line["cure"]

    def test_a_generator_is_said(self) -> None:
        def endless() -> Iterator[int]:
            yield from itertools.accumulate(itertools.count())

        [line] = self.said(lambda own: next(own.it), it=endless())
        assert line["holds"] == "an iterator (generator)"

    @pytest.mark.parametrize("name", ["calls"])
    def test_an_attribute_of_a_module_that_no_code_names_is_carried(self, name: str) -> None:
        training = Training()

        def body(_: Any) -> None:
            setattr(training.model, name, getattr(training.model, name) + 1)

        with structlog.testing.capture_logs() as logs:
            training.run(body)
        assert logs == []
        assert name in {place for _, place in names_of(training.model)}

    def test_an_attribute_of_a_module_that_the_program_sets_is_carried(self) -> None:
        training = Training()

        def body(_: Any) -> None:
            training.model.stage += 1

        with structlog.testing.capture_logs() as logs:
            training.run(body)
        assert logs == []

    def test_a_loss_that_is_made_anew_for_each_epoch_is_not_said(self) -> None:
        """As ``train_one_epoch(model, nn.CrossEntropyLoss(label_smoothing=0.1))`` does."""

        def body(own: SimpleNamespace) -> None:
            own.it = nn.Sequential(nn.Dropout(0.1), nn.CrossEntropyLoss(label_smoothing=0.1))

        made = nn.Sequential(nn.Dropout(0.1), nn.CrossEntropyLoss(label_smoothing=0.1))
        assert self.said(body, it=made) == []

        def other(own: SimpleNamespace) -> None:
            own.it = nn.CrossEntropyLoss(label_smoothing=own.it.label_smoothing + 0.1)

        [line] = self.said(other, it=nn.CrossEntropyLoss())
        assert line["holds"] == "a CrossEntropyLoss"

    def test_what_is_carried_or_stays_as_it_is_is_not_said(self) -> None:
        def body(own: SimpleNamespace) -> None:
            own.count += 1
            own.meter.sum += 1
            own.row = Row(own.row.sum + 1, 0)
            own.history.append(own.count)

        held = {"table": torch.zeros(9000), "names": ["a"] * 20000}
        assert self.said(body, count=0, history=[], meter=Meter(), row=Row(0, 0), **held) == []

    def test_weights_that_are_kept_in_the_middle_are_said_at_once(self) -> None:
        training = Training()

        def body(own: SimpleNamespace) -> None:
            if training.committed == 5:
                own.it = {"weights": [torch.zeros(9000)]}

        with structlog.testing.capture_logs() as logs:
            training.run(body, it=None, steps=8)
        [line] = logs
        assert line["holds"] == "a tensor of shape (9000,)"

    def test_a_list_that_outgrows_what_is_carried_is_said_then(self) -> None:
        training = Training()
        with structlog.testing.capture_logs() as logs:
            training.run(lambda own: own.it.append(0.5), it=[0.5] * 16_320, steps=150)
        [line] = logs
        assert line["holds"] == "a list of 16448 items"


def test_a_file_that_a_program_opens_late_is_told_of_with_its_own_cure(tmp_path: Path) -> None:
    """In mode "a" a joiner that opens it again loses nothing."""
    look = LeftBehind()
    with (tmp_path / "rows.csv").open("w") as rows, (tmp_path / "log").open("a") as lines:
        files = [("main.rows", rows), ("main.lines", lines)]
        frame = inspect.currentframe()
        assert frame is not None
        with structlog.testing.capture_logs() as logs:
            look.look(files, frame, memory=(), was_plain=lambda _: True)
    assert [each["variable"] for each in logs] == ["main.rows"]
    assert "has to be opened in mode 'a'" in logs[0]["cure"]


def test_an_optimizer_that_keeps_an_object_which_changes_is_refused() -> None:
    class Stats:
        def __init__(self) -> None:
            self.trust = 1.0

    class Trusting(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)
            self.stats = Stats()

    model = nn.Linear(2, 2)
    optimizer = Trusting(model.parameters())
    state = TrainingState(models=[model], optimizers=[optimizer], others={})
    lookout = Lookout(state, LoopVariables([]))
    frame = inspect.currentframe()
    assert frame is not None
    lookout.look(frame, committed=0)
    optimizer.stats.trust *= 0.9
    with pytest.raises(ConfigError, match="Trusting keeps stats, which changes"):
        lookout.look(frame, committed=1)
