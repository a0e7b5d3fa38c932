"""Which variables of a running function are still needed: read before they are set again.

A batch, a loss, the outputs of a model stand in variables between two steps, too, but the next step
sets them anew before anybody reads them. They need not be carried. This is the live-variable
analysis of compilers, on the bytecode of the function, from the instruction it stands at.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

__all__ = ["deleted_names", "live_names", "needed", "read_names"]

_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
_OF_SHAPE: Final = frozenset(
    {"size", "shape", "dim", "ndim", "numel", "nelement", "dtype", "device", "element_size"}
)
_ENDS: Final = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_ALWAYS_JUMPS: Final = (
    "JUMP_FORWARD",
    "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
    "JUMP_ABSOLUTE",
)


def live_names(frame: FrameType) -> frozenset[str]:
    """Names whose values matter from where ``frame`` stands on."""
    return _live(frame.f_code, frame.f_lasti)


def read_names(frame: FrameType) -> frozenset[str]:
    """Those of them of which more is asked than their shape."""
    return _live(frame.f_code, frame.f_lasti, shapes=False)


def deleted_names(frame: FrameType) -> frozenset[str]:
    """Names that have to stand for something, whatever it is: ``del`` comes before any reading."""
    return _live(frame.f_code, frame.f_lasti, deletes=True) - live_names(frame)


def needed(names: dict[str, Any], frame: FrameType, *, live: bool = True) -> dict[str, Any]:
    """Those of ``names`` that ``frame`` reads before it sets them again; all, without ``live``."""
    if not live:
        return dict(names)
    wanted = live_names(frame)
    return {name: value for name, value in names.copy().items() if name in wanted}


@lru_cache(maxsize=512)
def _live(code: CodeType, at: int, *, deletes: bool = False, shapes: bool = True) -> frozenset[str]:
    """What the instructions that may follow the one ``at`` an offset need.

    Args:
        code: The function's.
        at: An offset in it.
        deletes: ``del`` needs what it deletes.
        shapes: Who asks for a shape, a length or a type needs what he asks that of.
    """
    instructions = list(dis.get_instructions(code))
    index_of = {instruction.offset: index for index, instruction in enumerate(instructions)}
    follows = [_successors(instructions, index_of, index) for index in range(len(instructions))]
    touched = [tuple(_accesses(instruction)) for instruction in instructions]
    if not shapes:
        for index in range(len(instructions)):
            if _asks_for_shape(instructions, index):
                touched[index] = ()
    needed = [frozenset[str]()] * len(instructions)
    sets = {"STORE"} if deletes else {"STORE", "DELETE"}
    changes = True
    while changes:
        changes = False
        for index in reversed(range(len(instructions))):
            live = frozenset().union(*(needed[each] for each in follows[index]))
            for kind, name in reversed(touched[index]):
                live = live - {name} if kind in sets else live | {name}
            changes = changes or live != needed[index]
            needed[index] = live
    here = max((index for offset, index in index_of.items() if offset <= at), default=None)
    behind = [] if here is None else follows[here]
    return frozenset().union(_captured(code), *(needed[each] for each in behind))


def _asks_for_shape(instructions: list[dis.Instruction], index: int) -> bool:
    """Whether of the variable that an instruction loads its shape is asked, as ``x.size(0)``."""
    here = instructions[index]
    if not here.opname.startswith("LOAD_") or isinstance(here.argval, tuple):
        return False
    before, behind = instructions[max(index - 1, 0)], instructions[index + 1 : index + 2]
    if any("ATTR" in each.opname or "METHOD" in each.opname for each in behind):
        return behind[0].argval in _OF_SHAPE
    calls = any("CALL" in each.opname for each in behind)
    return calls and before.argval == "len" and before.opname in {"LOAD_GLOBAL", "LOAD_NAME"}


def _successors(
    instructions: list[dis.Instruction], index_of: dict[int, int], index: int
) -> list[int]:
    instruction = instructions[index]
    found = []
    if instruction.opcode in _JUMPS and instruction.argval in index_of:
        found.append(index_of[instruction.argval])
    if instruction.opname not in _ENDS + _ALWAYS_JUMPS and index + 1 < len(instructions):
        found.append(index + 1)
    return found


def _accesses(instruction: dis.Instruction) -> Iterator[tuple[str, str]]:
    """("LOAD", "STORE" or "DELETE", name) for each variable that an instruction touches."""
    name = instruction.opname
    if isinstance(instruction.argval, tuple):  # two in one, since Python 3.13
        kinds = [part for part in name.split("_") if part in {"LOAD", "STORE"}]
        names = list(instruction.argval)
    else:
        kinds, names = [name.partition("_")[0]], [instruction.argval]
    if "FAST" not in name and "NAME" not in name and "GLOBAL" not in name and "DEREF" not in name:
        return
    for kind, each in zip(kinds, names, strict=False):
        if isinstance(each, str) and kind in {"LOAD", "STORE", "DELETE"}:
            yield kind, each


@lru_cache(maxsize=512)
def _captured(code: CodeType) -> frozenset[str]:
    """Names that functions inside of ``code`` read: they may be called at any time."""
    found = set(code.co_cellvars)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= _captured(inner)
            found.update(
                each.argval
                for each in dis.get_instructions(inner)
                if each.opname in {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
            )
    return frozenset(found)
