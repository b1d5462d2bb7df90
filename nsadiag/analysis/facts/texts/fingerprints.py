"""The calls in which two ranks met, as TORCH_DISTRIBUTED_DEBUG=DETAIL compares them in its message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.ingest.messages.watchdog import OPS

CALL = re.compile(
    r"Rank (?P<rank>\d{1,9}) is running collective:\s*CollectiveFingerPrint\(SequenceNumber=(?P<number>\d{1,19}),?\s*OpType=(?P<op>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]*)\][\d, \[\]]*, TensorDtypes=(?P<dtypes>[\w ]+),)?"
)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """One rank's call; without sizes where the message leaves them out."""

    rank: int
    number: int  # of the group's collectives, from 0
    op: str
    sizes: list[list[int]] | None
    dtypes: list[str] | None


def fingerprints(message: str) -> Iterator[Fingerprint]:
    """The call of the rank that raised it, then its peer's."""
    for found in CALL.finditer(message):
        shape, dtypes = found["shape"], found["dtypes"]
        yield Fingerprint(
            rank=int(found["rank"]),
            number=int(found["number"]),
            op=OPS.get(found["op"], found["op"].lower()),
            sizes=None if shape is None else [[int(n) for n in re.findall(r"\d{1,19}", shape)]],
            dtypes=dtypes.split() if dtypes else None,
        )
