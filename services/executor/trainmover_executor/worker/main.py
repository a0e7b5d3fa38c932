"""The body of one training process: become a rank, run the user's program, say how it ended."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import structlog
from torch._C._distributed_c10d import TCPStore
from torch.distributed import distributed_c10d

from trainmover.tracing import observe
from trainmover_executor.feed.beside.passes import carry_passes
from trainmover_executor.messages.worker import Broke, WorkerSpec
from trainmover_executor.worker.adapters.checkpoints import adapt_checkpoints
from trainmover_executor.worker.adapters.distributed import (
    refuse_backends,
    refuse_join,
    take_groups,
)
from trainmover_executor.worker.adapters.ending import end_program
from trainmover_executor.worker.adapters.files import WithheldWrites, flush_files
from trainmover_executor.worker.adapters.names import OwnPaths, WithheldNames
from trainmover_executor.worker.adapters.objects import keep_own_objects
from trainmover_executor.worker.adapters.withhold import withhold_saves
from trainmover_executor.worker.blame import error_line, place_of
from trainmover_executor.worker.runtime import Runtime, current_runtime
from trainmover_executor.worker.to_standbys.files_asked import FilesAsked

__all__ = ["main"]

_FAILED: Final = 1


def main(spec: WorkerSpec) -> NoReturn:
    """Run the program of ``spec`` as its rank; never returns.

    The exit status is the program's: 0, what it passed to ``sys.exit``, or 1 with a traceback on
    stderr.
    """
    faulthandler.enable()  # a crash in native code names the line of the program
    _set_environment(spec)
    # The last line on `sys.stderr` says why the program ended; links break with it and are logged.
    observe.configure(service="worker", stream=sys.__stderr__)
    structlog.contextvars.bind_contextvars(machine=spec.machine, rank=spec.rank)
    runtime = Runtime(spec)
    adapt_checkpoints(runtime)
    own = OwnPaths()
    asked = FilesAsked(runtime.recording, is_shadow=lambda: runtime.sandboxed, own=own)
    runtime.on_first_step(asked.end)
    if spec.role == "standby":
        runtime.on_promotion(_silence(spec))
        runtime.on_promotion(withhold_saves())
        runtime.on_promotion(keep_own_objects())
        names = WithheldNames(own, await_folder=asked.await_folder)
        for withheld in (WithheldWrites(own), names):
            runtime.on_first_step(withheld.begin_iterations)
            runtime.on_promotion(withheld.end)
    runtime.start()
    take_groups()
    refuse_backends()
    refuse_join()
    carry_passes(runtime.drawers)
    store = _private_store()
    status = _run_program(spec)
    if not runtime.sandboxed:
        end_program()
    if runtime.sandboxed or status != 0:
        runtime.flush()  # why it ended, or why a plan failed, was noted just before
    else:
        runtime.saves.wait()
        runtime.finish()
    _flush()
    flush_files()
    # Interpreter shutdown would join daemon threads that wait for peers and agents.
    del store
    os._exit(status)


def _set_environment(spec: WorkerSpec) -> None:
    layout = spec.membership.layout
    os.environ.update(
        RANK=str(spec.rank),
        LOCAL_RANK=str(spec.local_rank),
        WORLD_SIZE=str(layout.world_size),
        LOCAL_WORLD_SIZE=str(layout.ranks_per_slot),
        GROUP_RANK=str(layout.slot_of(spec.rank)),
        TRAINMOVER_JOB=spec.job,
        TRAINMOVER_MACHINE=spec.machine,
    )
    # From 2.15 on torch records the calls of every process group, and ends the program where a
    # group has no backend in C++. Ours has none, and records its operations itself.
    if hasattr(distributed_c10d, "_maybe_attach_flight_recorder"):
        os.environ["TORCH_FR_BUFFER_SIZE"] = "0"


def _private_store() -> TCPStore:
    """A c10d store of this rank's own, for ``init_process_group("trainmover")`` without a session.

    The backend needs no store; torch's ``env://`` rendezvous wants one to exist. Giving every rank
    its own means that no rank hosts it for the others, so that losing rank 0 loses nothing.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), TORCHELASTIC_USE_AGENT_STORE="True"
    )
    return store


def _run_program(spec: WorkerSpec) -> int:
    """Run it; a standby whose program ends says why: it has not taken its slot."""
    program, *arguments = spec.program
    sys.argv = [program, *arguments]
    try:
        if spec.as_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program).resolve().parent))
            runpy.run_path(program, run_name="__main__")
    except SystemExit as leaving:
        _tell_end(spec, leaving)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)  # noqa: T201 - what the interpreter would do
            return _FAILED
        return leaving.code or 0
    except BaseException as error:  # noqa: BLE001 - reported as the interpreter would
        traceback.print_exc()
        _tell_end(spec, error)
        if (latch := current_runtime().latch).surfaced:
            # Torch turns a broken collective into odd errors of its own: name the cause.
            print(  # noqa: T201 - the last word on stderr
                f"rank {spec.rank}: communication broke outside of a step: {latch.reason}. Only "
                "bodies of steps and session.between_steps() are done again: start the job again.",
                file=sys.stderr,
            )
        return _FAILED
    _tell_end(spec, None)
    return 0


def _tell_end(spec: WorkerSpec, cause: BaseException | None) -> None:
    runtime = current_runtime()
    if not runtime.sandboxed:
        return
    if cause is None:
        error = "the program ended in its shadow iterations, before it took a slot"
    elif isinstance(cause, SystemExit):
        error = f"the program ended in its shadow iterations: sys.exit({cause.code!r})"
    else:
        error = error_line(cause)
    where = "" if cause is None else place_of(cause)
    runtime.report(Broke(rank=spec.rank, error=error, where=where))


def _silence(spec: WorkerSpec) -> Callable[[], None]:
    """Send what shadow iterations print to a log file, or nowhere; the result ends that."""
    target = os.devnull
    if spec.log_dir:
        Path(spec.log_dir).mkdir(parents=True, exist_ok=True)
        target = str(Path(spec.log_dir) / f"{spec.machine}-rank-{spec.rank}.shadow.log")
    _flush()
    stdout = sys.stdout.fileno()
    kept = os.dup(stdout)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, stdout)
    os.close(descriptor)

    def speak() -> None:
        _flush()
        os.dup2(kept, stdout)
        os.close(kept)

    return speak


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
