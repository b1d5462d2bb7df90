"""What a rank has queued and not finished, by the flight recorders of all ranks: work of its own, or waiting for peers?

NCCL's recorder says "scheduled" of what stands behind kernels that run, and of what spins because a peer is
missing; only with TORCH_NCCL_ENABLE_TIMING does it say "started" of the latter.
"""

from __future__ import annotations

import re
from typing import Any

from nsadiag.evidence.recorder import TRANSFER, Dump, Entry, is_nccl, members, pending

# Members may give tensors of different sizes to these.
UNEVEN = re.compile(r"all_?to_?all|gather|scatter|coalesced")


# Of an entry, what is laid beside that of a peer.
FIELDS = (
    "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name", "input_sizes", "input_dtypes",
    "state", "retired", "is_p2p",
)  # fmt: skip
MOST_PENDING = 64


def queue_of(fr: Dump) -> Dump:
    """The dump, with what is pending alone, and who is in those groups: all that `waits_for_peers` asks of it."""
    found = [{name: e[name] for name in FIELDS if name in e} for e in pending(fr)[:MOST_PENDING]]
    groups = {_number(entry)[0] for entry in found}
    config = {name: about for name, about in fr.get("pg_config", {}).items() if name in groups}
    return {"entries": found, "pg_config": {n: {"ranks": a.get("ranks")} for n, a in config.items()}}


def _number(entry: Entry) -> tuple[str, int]:
    return str(entry["process_group"][0]), int(entry["collective_seq_id"])


def _what(entry: Entry) -> tuple[Any, ...]:
    name = str(entry["profiling_name"])
    sizes = None if UNEVEN.search(name) else entry["input_sizes"]
    return name, sizes, entry.get("input_dtypes")


def _is_same(one: Entry, other: Entry) -> bool:
    """The same collective, or the two ends of a transfer."""
    if one["process_group"][0] != other["process_group"][0]:
        return False
    ends = [TRANSFER.search(str(e["profiling_name"])) for e in (one, other)]
    if ends[0] and ends[1]:
        return ends[0][1] != ends[1][1] and ends[0].group(2, 3) == ends[1].group(3, 2)
    return _number(one) == _number(other) and _what(one) == _what(other)


def _peers(entry: Entry, fr: Dump, rank: int, world: set[int]) -> set[int]:
    """Global ranks without which the entry cannot end."""
    group = members(fr, _number(entry)[0]) or world
    ends = TRANSFER.search(str(entry["profiling_name"]))
    listed = sorted(group)
    if ends and int(ends[3]) < len(listed):
        return {listed[int(ends[3])]}
    return group - {rank}


def waits_for_peers(rank: int, dumps: dict[int, Dump], world: set[int]) -> bool:
    """Whether the rank is held up by what its peers did not issue, issued otherwise, or died before.

    What is first in the queues of all who take part stands behind kernels that still run: that is work.
    """
    mine = dumps.get(rank, {})
    found = pending(mine)
    if not found:
        return False
    first = found[0]
    if not is_nccl(first) or first.get("state") == "started":
        return True
    for peer in _peers(first, mine, rank, world):
        theirs = pending(dumps.get(peer, {}))
        if not theirs or not _is_same(first, theirs[0]):
            return True
    return False
