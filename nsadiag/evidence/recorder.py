"""A flight recorder's dump as torch writes it, and its entries that are not over, whichever backend wrote it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict, cast

from nsadiag.evidence.documents import shapes
from nsadiag.evidence.documents.values import Whole
from nsadiag.evidence.spans import ranks_in


class Frame(TypedDict, total=False):
    """A frame of the Python stack that issued a call, innermost first in its entry."""

    name: str
    filename: str
    line: Whole | None


class _Named(TypedDict):
    """Keys of every entry since torch 2.4."""

    process_group: Annotated[Sequence[str], shapes.of(shapes.text, shapes.text)]  # name, description
    collective_seq_id: Whole
    profiling_name: str  # `nccl:all_reduce`


class Entry(_Named, total=False):
    """A call of the recorder's ring. Older versions of torch have fewer keys, and other names for some."""

    state: str
    retired: bool
    is_p2p: bool
    op_id: Whole
    p2p_seq_id: Whole
    record_id: Whole
    pg_id: Whole
    pg_name: str  # before torch 2.4
    seq_id: Whole  # before torch 2.4
    input_sizes: list[list[Whole]] | None
    output_sizes: list[list[Whole]]
    input_dtypes: list[str]
    output_dtypes: list[str]
    time_created_ns: Whole | None
    time_discovered_started_ns: Whole | None
    time_discovered_completed_ns: Whole | None
    thread_id: str
    thread_name: str
    frames: list[Frame]
    index: int  # ours: its place in the ring, where only some of the entries were kept


class GroupConfig(TypedDict, total=False):
    """A process group as the recorder knows it."""

    name: str
    desc: str
    ranks: str  # "[0, 1]"


class Dump(TypedDict, total=False):
    """The recorder of one rank."""

    version: str
    rank: int
    pg_config: dict[str, GroupConfig]
    pg_status: dict[str, Any]
    entries: list[Entry]


# The version of what is no dump, but made from a line of NCCL's watchdog: it has the call that timed out, and no other.
OF_WATCHDOG = "watchdog"

# NCCL's name of a transfer, with ranks of the group: its own, and the peer's.
NUMBERS = re.compile(r"(?<!\d)\d{1,9}(?!\d)")  # ranks: a longer one is damage
TRANSFER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
BATCH = ":coalesced"
STATE = ("state", "retired", "time_discovered_started_ns", "time_discovered_completed_ns")


def settled(fr: Dump) -> Dump:
    """The dump, with the parts of each batch of transfers (`batch_isend_irecv`) in the state of the batch: they never get one of their own."""
    entries = fr.get("entries", [])
    sent = {_batch(e) for e in entries if e.get("is_p2p")}
    batches = {_transfer(e): e for e in entries if _is_batch(e) and _batch(e) in sent}
    parts = [batches.get(_transfer(e)) if e.get("is_p2p") else None for e in entries]
    return {
        **fr,
        "entries": [_in_state_of(e, batch) if batch else e for e, batch in zip(entries, parts, strict=True)],
    }


def pending(fr: Dump) -> list[Entry]:
    """Entries of a settled dump that are not over. gloo marks those that are by `retired`, NCCL by the state as well."""
    entries = fr.get("entries", [])
    # The parts of a batch of collectives are told by it, a batch of transfers by its parts.
    batches = {_batch(e) for e in entries if _is_batch(e)}
    sent = {_batch(e) for e in entries if e.get("is_p2p")}
    return [
        e
        for e in entries
        if not e.get("retired")
        and e.get("state") != "completed"
        and (_batch(e) not in sent if _is_batch(e) else e.get("is_p2p") or _batch(e) not in batches)
    ]


def _is_batch(entry: Entry) -> bool:
    return str(entry["profiling_name"]).endswith(BATCH)


def _batch(entry: Entry) -> tuple[str, Any]:
    """The number that a batch shares with the last of its parts."""
    return str(entry["process_group"][0]), entry.get("op_id")


def _transfer(entry: Entry) -> tuple[str, Any]:
    """The number that a batch of transfers shares with all of its parts; before torch 2.4 with the last one alone."""
    return str(entry["process_group"][0]), entry.get("p2p_seq_id", entry.get("op_id"))


def _in_state_of(part: Entry, batch: Entry) -> Entry:
    return cast("Entry", {**part, **{key: value for key, value in batch.items() if key in STATE}})


def transfers(fr: Dump) -> set[int]:
    """The positions of NCCL's sends and receives, and batches of them, which are not numbered as collectives are."""
    entries = fr.get("entries", [])
    batches = {_batch(e) for e in entries if e.get("is_p2p")}
    return {
        index for index, e in enumerate(entries) if e.get("is_p2p") or (_is_batch(e) and _batch(e) in batches)
    }


def backend_of(entry: Entry) -> str:
    """`nccl` of `nccl:all_reduce`. Each backend of a group numbers its calls by itself."""
    return str(entry["profiling_name"]).partition(":")[0]


def is_nccl(entry: Entry) -> bool:
    """Whether the device does it, while the host goes on."""
    return str(entry["profiling_name"]).startswith("nccl")


def members(fr: Dump, group: str) -> set[int] | None:
    """Ranks of the group by the dump's own pg_config; None where it does not say."""
    return set(member_ranks(fr.get("pg_config", {}).get(group, {}).get("ranks") or "")) or None


@functools.lru_cache(maxsize=1024)
def member_ranks(text: str) -> frozenset[int]:
    """The members in `[0, 1, 2]`, as torch writes it, or `0-2`, of what is no number nothing; cached, as each rank of a group repeats the list."""
    listed = text.strip()
    if listed.startswith("["):
        return frozenset(int(word) for word in NUMBERS.findall(listed))
    try:
        return frozenset(ranks_in(listed))
    except ValueError:
        return frozenset()
