"""``workloads.py``, where the first state that a standby is handed has a bit turned over."""

from __future__ import annotations

from typing import Any

import workloads

from trainmover_executor.state.handing_over import transfer
from trainmover_executor.worker.runtime import current_runtime

_honest = transfer.exchange
_damaged = False


def _damage(*, watch: Any = None, **message: Any) -> None:
    global _damaged  # noqa: PLW0603 - one life, one damage
    into = message.get("into")
    if watch is None or into is None or _damaged:
        _honest(watch=watch, **message)
        return
    _honest(**message)
    _damaged = True
    _, size, memory = into
    memory[size // 2] ^= 4
    watch(size)


if __name__ == "__main__":
    if current_runtime().sandboxed:
        transfer.exchange = _damage  # type: ignore[assignment]
    workloads.main()
