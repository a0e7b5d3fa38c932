"""Wire layout of collective telemetry: one JSON header line, then raw little-endian records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.errors import MalformedEventError

__all__ = ["OPS", "RECORD", "Batch", "decode_batch", "encode_batch"]

OPS: Final = (
    "allreduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
    "vote",
)
"""Operation names; a record's ``op`` is an index into this tuple."""

RECORD: Final = np.dtype(
    [
        ("rank", "<i4"),
        ("step", "<i8"),
        ("group", "<u4"),  # CRC-32 of the group's name
        ("sequence", "<i8"),  # number of the collective within its group
        ("op", "<i4"),
        ("bytes", "<i8"),
        ("enter_ns", "<i8"),  # the rank's own monotonic clock: never compare across machines
        ("duration_ns", "<i8"),
    ]
)
"""One completed collective at one rank."""

_LIMIT: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one machine.

    Attributes:
        job: Job name.
        machine: Sender.
        generation: The machine's generation.
        epoch: Epoch of the records.
        records: Array of dtype ``RECORD``; may be empty (a bare sign of life).
        dropped: Records lost to a full ring buffer since the last batch.
    """

    job: str
    machine: str
    generation: int
    epoch: int
    records: npt.NDArray[np.void]
    dropped: int = 0


def encode_batch(batch: Batch) -> bytes:
    """Bytes of ``batch``: header line, newline, records."""
    header = {
        "v": 1,
        "job": batch.job,
        "machine": batch.machine,
        "generation": batch.generation,
        "epoch": batch.epoch,
        "dropped": batch.dropped,
        "count": len(batch.records),
        "dtype": RECORD.descr,
    }
    return json.dumps(header).encode() + b"\n" + batch.records.tobytes()


def decode_batch(data: bytes) -> Batch:
    """Parse what ``encode_batch`` made.

    Raises:
        MalformedEventError: The header is not ours or the records do not add up.
    """
    if len(data) > _LIMIT:
        raise MalformedEventError(f"telemetry batch of {len(data)} bytes is over {_LIMIT}")
    head, separator, body = data.partition(b"\n")
    try:
        header = json.loads(head)
        count, version = int(header["count"]), header["v"]
        batch = Batch(
            job=str(header["job"]),
            machine=str(header["machine"]),
            generation=int(header["generation"]),
            epoch=int(header["epoch"]),
            records=np.frombuffer(body[: len(body) // RECORD.itemsize * RECORD.itemsize], RECORD),
            dropped=int(header["dropped"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedEventError(f"telemetry header does not parse: {error}") from error
    if version != 1 or not separator or count * RECORD.itemsize != len(body):
        raise MalformedEventError(
            f"telemetry batch v{version} announces {count} records, holds {len(body)} bytes"
        )
    return batch
