"""Variables of the loop that change from step to step and cannot be carried: said once for each."""

from __future__ import annotations

import array
import contextvars
import io
import itertools
import operator
import queue
import threading
import types
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Final

import numpy as np
import structlog
import torch
from torch import nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainmover.runtime import procfs
from trainmover_executor.program.frames import file_of, is_of_script, is_program, place_in
from trainmover_executor.program.holders.data import OfOthers, bare_of_data
from trainmover_executor.program.holders.hooks import Registered
from trainmover_executor.program.looking.finding import Untold
from trainmover_executor.program.looking.modules import look_at, names_of
from trainmover_executor.program.looking.parts import is_name
from trainmover_executor.program.values.kinds.derived import base_of
from trainmover_executor.program.values.large import signature_of
from trainmover_executor.program.values.plain import CONTAINERS, PLAIN

__all__ = ["LeftBehind", "attributes_of"]

log = structlog.get_logger(__name__)

_SAMPLE: Final = 512
_OBJECTS: Final = (
    nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    types.FunctionType,
)
"""A name for one of these may come to stand for another."""
_ITERATORS: Final = (
    *(itertools.cycle, itertools.chain, itertools.islice),
    *(zip, map, filter, enumerate, reversed),
)
_WITH_A_LENGTH: Final = frozenset(
    type(each)
    for each in (
        *map(iter, ([], (), range(0), "", {}, {}.values(), {}.items(), set())),
        *(reversed([]), reversed({}), reversed(range(0))),
    )
)
"""Iterators that tell how much is left."""
_TRACK: Final = (
    "give it to session.track(...), compute it from step.index, or note numbers with session.log()"
)
_CYCLE: Final = "draw from session.cycle(loader): a step that is done again draws the same batch"
_GENERATOR: Final = (
    "have it loop over lists, ranges, a loader or 'while True', and not over itertools.cycle() or "
    "another iterator of Python's; a count of its own tells where it is"
)
_FILE: Final = (
    "open it in front of the first step: a joiner goes on at its end. One that it opens itself "
    "has to be opened in mode 'a'"
)
_IN_HERE: Final = "have the training process hold what it keeps (gymnasium's SyncVectorEnv, say)"
_HOOKS: Final = (
    "register hooks in front of the first step, and have each look by itself whether it is to act: "
    "a joiner has the hooks that its own program registered"
)
_MODEL: Final = "model."
_BUFFER: Final = "register_buffer() makes a tensor of it that is carried, session.track() a value"


class LeftBehind:
    """Compares what ``LoopVariables`` passes over from one look to the next, and warns."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}
        self._said: set[str] = set()

    def look(
        self,
        variables: Iterable[tuple[str, Any]],
        frame: FrameType,
        *,
        memory: Collection[int],
        was_plain: Callable[[str], bool] = lambda _: False,
    ) -> list[str]:
        """Look at ``variables``, given as (path, value).

        Args:
            variables: Those that are not carried.
            frame: The loop, for people.
            memory: Addresses of tensors that are carried.
            was_plain: Whether a variable could be carried before: None at first, weights later.

        Returns:
            Paths of those that were warned of now.
        """
        said: list[str] = []
        looked_at: set[int] = set()
        for path, value in variables:
            now = _print(value, memory)
            if now is None and is_name(path) and not _is_ours(value):
                now = id(value)  # it may come to stand for another object of a library
            if now is None or id(value) in looked_at or _is_harmless(value):
                continue
            looked_at.add(id(value))  # it may have several names
            if path in self._said:
                continue
            grew = path not in self._seen and was_plain(path)
            before = self._seen.get(path, now)
            self._seen[path] = now
            if isinstance(value, _Value) and before != now:
                look_at([path.rpartition(".")[2]])  # it is carried from now on
            elif grew or before != now:
                self._say(path, value, frame)
                said.append(path)
        return said

    def _say(self, path: str, value: Any, frame: FrameType) -> None:
        self._said.add(path)
        log.warning(
            "a variable changes from step to step and cannot be carried: when a machine is "
            "replaced, by plan or after a crash, it stays behind, and the joiner has its own",
            variable=path,
            holds=_holds(value),
            loop=place_in(frame),
            cure=_cure_of(path, value),
        )


def attributes_of(models: Iterable[nn.Module]) -> Iterator[tuple[str, Any]]:
    """(path, value) of the plain values that modules of the program's own keep as attributes.

    Those that their own code changes are variables, which are carried.
    """
    for model in models:
        looked_at = names_of(model)
        for name, module in model.named_modules():
            kind = type(module)
            if not _is_of_program(kind):
                continue
            for key, value in vars(module).items():
                if (id(module), key) in looked_at:
                    continue
                if key != "training" and not key.startswith("_"):
                    if type(value) in PLAIN:
                        yield f"{_MODEL}{name}.{key}".replace("..", "."), _Value(value)
                    elif isinstance(value, torch.Tensor):
                        yield f"{_MODEL}{name}.{key}".replace("..", "."), value


class _Value:
    """A plain value where ``LoopVariables`` does not look."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _is_of_program(kind: type) -> bool:
    return is_program(kind.__module__, file_of(kind.__module__))


def _print(value: Any, memory: Collection[int]) -> Any:
    """What differs when ``value`` has changed; None where that cannot be seen cheaply."""
    if isinstance(value, torch.Tensor):
        return _print_of_tensor(value, memory)
    if isinstance(value, OfOthers):
        found = _print(value.of, memory)
        return _print_of_other(value.of) if found is None else found
    for kinds, print_of in _PRINTS:
        if isinstance(value, kinds):
            return print_of(value)
    if type(value) in CONTAINERS or base_of(type(value)) is not None:
        return len(value), id(_last(value))
    return repr(value) if isinstance(value, str | bytes | float | int) else _print_of_members(value)


def _is_harmless(value: Any) -> bool:
    """Whether it may be another one at a joiner: a function of a package, a file that grows."""
    if isinstance(value, types.FunctionType):
        return not is_of_script(value.__globals__.get("__name__", ""))
    return isinstance(value, io.IOBase) and "a" in str(getattr(value, "mode", ""))


def _is_ours(value: Any) -> bool:
    """Whether ``value`` came from a session: its step, say."""
    return type(value).__module__.startswith("trainmover")


def _print_of_iterator(value: Iterator[Any]) -> Any:
    if isinstance(value, _BaseDataLoaderIter):
        return value._num_yielded  # noqa: SLF001 - no public name
    if isinstance(value, types.GeneratorType):
        return _print_of_generator(value)
    if type(value) in _WITH_A_LENGTH:
        return operator.length_hint(value)
    if isinstance(value, itertools.count):
        return repr(value)
    # Nothing shows whether one of Python's was asked, and nobody keeps one for nothing.
    return object() if isinstance(value, _ITERATORS) else _print_of_members(value)


def _print_of_object(value: Any) -> Any:
    """Which one it is; of a module that holds no tensors, a loss, what it is set to.

    A program may make that anew for each epoch, and it is as good as the one before.
    """
    if not isinstance(value, nn.Module) or any(
        True for _ in itertools.chain(value.parameters(), value.buffers())
    ):
        return id(value)
    carried = names_of(value)
    settings = [
        (type(one), name, each)
        for one in value.modules()
        for name, each in vars(one).items()
        if type(each) in PLAIN and (id(one), name) not in carried
    ]
    return repr(settings)


def _print_of_other(value: object) -> Any:
    """Its class and its numbers: it may be made anew, a file that is opened at first use say."""
    held = getattr(value, "__dict__", {}).copy()
    return type(value), [(name, each) for name, each in held.items() if type(each) in PLAIN]


def _sample_of(value: np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(value.reshape(-1)[:_SAMPLE]).tobytes()


def _print_of_tensor(value: torch.Tensor, memory: Collection[int]) -> Any:
    if type(value) not in {torch.Tensor, nn.Parameter}:
        return None
    if value.layout is not torch.strided:
        return id(value), value._version  # noqa: SLF001 - no public name
    if value.untyped_storage().data_ptr() in memory:
        return None
    return value.data_ptr(), value._version  # noqa: SLF001 - no public name


def _print_of_process(value: BaseProcess) -> Any:
    """How often it was asked for something: what it keeps, environments say, nobody can see."""
    return None if value.pid is None else procfs.waits_of(value.pid)


def _last(value: Any) -> Any:
    """The last member of an ordered container."""
    if isinstance(value, set | frozenset) or not value:
        return None
    return next(reversed(value.values() if isinstance(value, dict) else value))


def _print_of_generator(value: types.GeneratorType[Any, Any, Any]) -> Any:
    """Where it stands, and which objects its variables are; None while it runs."""
    frame = value.gi_frame
    if frame is None or value.gi_running:
        return None
    if value.gi_suspended and is_program(
        frame.f_globals.get("__name__", ""), value.gi_code.co_filename
    ):
        return object()  # it draws from something that does not show whether it was asked
    return frame.f_lasti, [id(each) for each in frame.f_locals.values()]


def _print_of_members(value: Any) -> Any:
    """Plain members of named tuples, and of objects of the program's own that have slots."""
    if isinstance(value, tuple):
        members = list(value)
    elif getattr(type(value), "__slots__", None) and _is_of_program(type(value)):
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        members = [getattr(value, name, None) for name in names]
    else:
        return None
    return repr([member for member in members if type(member) in PLAIN])


_PRINTS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (_Value, lambda held: repr(held.value)),
    (_OBJECTS, _print_of_object),
    (np.ndarray, lambda held: (held.shape, zlib.crc32(_sample_of(held)))),
    ((io.StringIO, io.BytesIO), lambda held: None if held.closed else held.tell()),
    (io.IOBase, id),
    (queue.Queue, lambda held: (held.qsize(), held.unfinished_tasks)),
    (queue.SimpleQueue, lambda held: held.qsize()),
    (BaseProcess, _print_of_process),
    (Registered, lambda held: repr(held.names)),
    (Untold, lambda held: repr(signature_of(held.of.state_dict()))),
    (contextvars.ContextVar, lambda held: id(held.get(None))),
    (threading.local, lambda held: [(name, id(each)) for name, each in vars(held).items()]),
    (Iterator, _print_of_iterator),
    ((bytearray, array.array), zlib.crc32),
)
"""Of which kinds what shows that one has changed; the first that fits counts."""


def _cure_of(path: str, value: Any) -> str:
    if path.startswith(_MODEL):
        return _BUFFER
    if isinstance(value, Registered):
        return _HOOKS
    if isinstance(value, BaseProcess):
        return _IN_HERE
    if isinstance(value, io.IOBase):
        return _FILE
    is_data = isinstance(value, _BaseDataLoaderIter | itertools.cycle) or (
        type(value) in _WITH_A_LENGTH
    )
    if isinstance(value, types.GeneratorType):
        return _GENERATOR
    return _CYCLE if is_data else _TRACK


def _holds(value: Any) -> str:
    value = bare_of_data(value)
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, _Value):
        return f"a {type(value.value).__name__}, an attribute of a module"
    if isinstance(value, Registered):
        return f"{len(value.names)} hooks"
    if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
        return f"an iterator ({type(value).__name__})"
    if isinstance(value, Untold):
        return f"a {type(value.of).__name__}"
    many = f" of {len(value)} items" if isinstance(value, Sized) else ""
    return f"a {type(value).__name__}{many}"
