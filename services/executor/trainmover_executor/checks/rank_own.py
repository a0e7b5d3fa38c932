"""Large variables that differ from rank to rank: no replica has them, so a neighbour keeps them."""

from __future__ import annotations

from typing import Any, Final

import structlog

from trainmover_executor.moves.private_state import PrivateStateKeeper
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.large import holds_prints
from trainmover_executor.program.values.lasting import EXTRA, MODULE
from trainmover_executor.program.variables import LoopVariables

__all__ = ["RankOwn"]

log = structlog.get_logger(__name__)

_EARLY_STEPS: Final = 8
_EVERY: Final = 64


class RankOwn:
    """Compares prints of large variables with those of a rank whose private state is kept here.

    A hidden state, a memory of what this rank has seen, an average of the weights or the best ones
    so far that one rank alone keeps: small ones of these are told whole from then on, and survive a
    crash. Of what is too large for that a warning says what to do.

    What the session was given by name comes to a joiner with the rest of a replica's state. Where
    it has changed some times and was the same at both ranks, an average of the weights say, it is
    not looked at any more: that takes two passes over it in each step.

    Args:
        private_state: What is kept of other ranks, and was told by this one.
        variables: The program's own.
    """

    def __init__(self, private_state: PrivateStateKeeper, variables: LoopVariables) -> None:
        self._private_state = private_state
        self._variables = variables
        self._since: dict[str, int] = {}
        self._done: set[str] = set()
        self._missed: set[str] = set()
        self._alike: dict[str, list[Any]] = {}
        self._joined = False

    def joined(self) -> None:
        """This rank took another's place: others may tell no more of what was alike at all."""
        self._joined = True

    def look(self, committed: int, *, step_s: float) -> None:
        """Compare what was told with the last vote, where it is time to.

        Args:
            committed: Steps completed by the job.
            step_s: How long a step takes, in seconds; 0 while nobody knows.
        """
        if not step_s:
            return
        for path, nbytes in self._variables.lasting.pass_on(step_s=step_s).items():
            self._say_read(path, nbytes)
        mine = self._private_state.own_variables(step=committed)
        large = [path for path, tree in mine.items() if self._is_due(path, tree, committed)]
        if not large:
            return
        theirs = self._private_state.neighbours_variables(step=committed)
        if theirs is None:
            return
        for path in large:
            is_left = path not in theirs and self._joined and path.startswith(EXTRA)
            if path not in theirs and path not in self._missed and not is_left:
                self._missed.add(path)  # the other may find it with its next look
            elif is_left or (path in theirs and _are_alike(mine[path], theirs[path])):
                self._note_alike(path, mine[path])
            else:
                self._done.add(path)
                is_kept = self._variables.lasting.tell_whole(path, step_s=step_s)
                if isinstance(mine[path], str):  # its print, of which nothing can be made
                    self._variables.lasting.leave(path)
                self._say(path, is_kept=is_kept, alone=path not in theirs)

    def _is_due(self, path: str, tree: object, committed: int) -> bool:
        is_print = path.startswith(EXTRA) and isinstance(tree, str)
        if path in self._done or not (is_print or holds_prints(tree)):
            return False
        since = committed - self._since.setdefault(path, committed)
        return path.startswith(EXTRA) or since < _EARLY_STEPS or not since % _EVERY

    def _note_alike(self, path: str, tree: Any) -> None:
        if not path.startswith(EXTRA):
            return
        seen = self._alike.setdefault(path, [])
        if not (seen and equal(seen[-1], tree)):
            seen.append(tree)
        if len(seen) > _EARLY_STEPS or _is_of_module(tree):
            self._done.add(path)
            del self._alike[path]
            self._variables.lasting.leave(path)

    @staticmethod
    def _say_read(path: str, nbytes: int) -> None:
        log.warning(
            "code behind the step of the optimizer reads what a neighbour cannot keep: if this "
            "machine dies there, the joiner reads what its own body made",
            variable=path,
            because=f"it has {nbytes / 2**20:.1f} MiB" if nbytes else "it is a library's object",
            cure="read it in front of optimizer.step(), and keep what comes of it",
        )

    @staticmethod
    def _say(path: str, *, is_kept: bool, alone: bool) -> None:
        if is_kept:
            log.info("a large variable differs from rank to rank: neighbours keep it", path=path)
            return
        if alone:
            extra = path.startswith(EXTRA)
            after = "ends the job" if extra else "leaves the joiner with what it has itself"
            log.warning(
                "this rank alone has a large variable, and a neighbour can keep no copy: a planned "
                f"move carries it, but a crash of this machine {after}",
                variable=path,
                cure="keep it at all ranks, each of which then has a copy: what one rank computes "
                "while the others wait takes no longer at all of them",
            )
            return
        log.warning(
            "a variable differs from rank to rank and is too large for a neighbour to keep, or of "
            "kinds that it cannot: a planned move carries it, but after a crash the joiner has its "
            "own, or of what the session was given by name another rank's",
            variable=path,
            cure="keep less in it, in tensors, or compute it from what all ranks have",
        )


def _are_alike(mine: Any, theirs: Any) -> bool:
    return equal(mine, theirs) or (_is_of_module(mine) and _is_of_module(theirs))


def _is_of_module(tree: Any) -> bool:
    return isinstance(tree, str) and tree.startswith(MODULE)
