"""Waits for the id of a communicator that its first rank publishes in torch's store."""

from __future__ import annotations

import re
from dataclasses import dataclass

ASKED = re.compile(
    r"\[(?P<rank>\d{1,9})\] is setting up NCCL communicator and retrieving ncclUniqueId from \[(?P<first>\d{1,9})\] via c10d key-value store"
    r" by key '(?P<key>[^']*)'"
)


@dataclass(frozen=True, kw_only=True)
class UniqueIdWait:
    """One rank's wait, in the numbers of its group."""

    rank: int
    first: int  # the rank that has to publish the id
    key: str


def unique_id_wait(message: str) -> UniqueIdWait | None:
    """As torch says it where the wait failed."""
    found = ASKED.search(message)
    return (
        UniqueIdWait(rank=int(found["rank"]), first=int(found["first"]), key=found["key"]) if found else None
    )
