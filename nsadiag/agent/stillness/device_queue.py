"""Pending entries of the ranks' flight recorders: does a rank wait for its peers, or is what it queued still work?

NCCL's recorder says "scheduled" of what stands behind kernels that run, and of what spins because a peer is
missing; only with TORCH_NCCL_ENABLE_TIMING does it say "started" of the latter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from nsadiag.evidence.recorder import TRANSFER, Dump, Entry, is_nccl, members, pending, settled
from nsadiag.evidence.spans import spelled

# Members may give tensors of different sizes to these.
UNEVEN = re.compile(r"all_?to_?all|gather|scatter|coalesced")


# Of an entry, what is laid beside that of a peer.
FIELDS = (
    "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name", "input_sizes", "input_dtypes",
    "state", "retired", "is_p2p",
)  # fmt: skip


def queue_of(fr: Dump) -> Dump:
    """The dump, with what stands first in line alone, and who is in that group: all that `held_up` asks of it."""
    found = [
        cast("Entry", {name: e[name] for name in FIELDS if name in e})
        for e in map(dict, pending(settled(fr))[:1])
    ]
    groups = [_number(entry)[0] for entry in found]
    return {"entries": found, "pg_config": {g: {"ranks": spelled(members(fr, g) or ())} for g in groups}}


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


def held_up(dumps: Mapping[int, Dump], world: set[int]) -> set[int]:
    """Ranks that wait for what their peers did not issue, issued otherwise, or died before.

    What is first in the queues of all who take part stands behind kernels that still run: that is work.
    """
    firsts = {rank: found[0] for rank, dump in dumps.items() if (found := pending(settled(dump)))}
    agreed: dict[str, bool] = {}
    return {rank for rank, first in firsts.items() if _is_held_up(rank, first, dumps, firsts, world, agreed)}


def _is_held_up(
    rank: int,
    first: Entry,
    dumps: Mapping[int, Dump],
    firsts: Mapping[int, Entry],
    world: set[int],
    agreed: dict[str, bool],
) -> bool:
    """`agreed`: whether all members of a group have the same first in line, by group and what that is."""
    if not is_nccl(first) or first.get("state") == "started":
        return True
    if TRANSFER.search(str(first["profiling_name"])):
        return _lacks_one(first, _peers(first, dumps[rank], rank, world), firsts)
    group = _number(first)[0]
    # Thousands of ranks stand in the same collective: its members are asked once, and not once by each of them.
    key = repr((dumps[rank].get("pg_config", {}).get(group, {}).get("ranks"), _number(first), _what(first)))
    if key not in agreed:
        agreed[key] = not _lacks_one(first, members(dumps[rank], group) or world, firsts)
    return not agreed[key]


def _lacks_one(first: Entry, peers: set[int], firsts: Mapping[int, Entry]) -> bool:
    return any(peer not in firsts or not _is_same(first, firsts[peer]) for peer in peers)
