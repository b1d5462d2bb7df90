"""Collectives and transfers of a rank: calls from Python by its recording, and calls to the backend by torch's flight recorder."""

from __future__ import annotations

import bisect
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, NamedTuple

from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.groups import Groups, newest_dump
from nsadiag.analysis.facts.spans import Span
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence import recorder
from nsadiag.evidence.documents.python_stacks import AUTOGRAD
from nsadiag.evidence.numbers import natural
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table


class CollectiveCall(NamedTuple):
    """One collective that a rank called."""

    rank: Annotated[int, "the rank that called it"]
    group: Annotated[str, "the process group, by its label"]
    call: Annotated[int, "the number of the call in its group, as the rank counts"]
    op: Annotated[str, "the function of torch.distributed"]
    root: Annotated[int | None, "the root's global rank, where the operation has one"]
    tensors: Annotated[str, "sizes and types as given: float32[8,2] (3x float32[8,2])"]
    splits: Annotated[str | None, "rows received from each member / sent to each: 2,4/3,2"]
    step: Annotated[int, "steps of the optimizer before it"]
    thread: Annotated[int, "the thread that called it"]
    place: Annotated[str, "file, line and function"]
    begin_s: Annotated[float, "when it was called, in seconds since the job was started"]
    end_s: Annotated[float | None, "when it returned; missing while the rank is in it"]


class Created(NamedTuple):
    """One process group that a rank created."""

    rank: Annotated[int, "the rank that created it"]
    call: Annotated[int, "the number of the group, as the rank counts"]
    op: Annotated[str, "the function of torch.distributed"]
    ranks: Annotated[str, "the members, as given"]
    local: Annotated[bool, "whether the members alone create it"]
    place: Annotated[str, "file, line and function"]
    begin_s: Annotated[float, "when it was called, in seconds since the job was started"]
    end_s: Annotated[float | None, "when it returned; missing while the rank is in it"]


class Transfer(NamedTuple):
    """One send or receive, or a wait for it, by peer."""

    rank: Annotated[int, "the rank that called it"]
    op: Annotated[str, "irecv is the call, irecv.wait the wait for its Work"]
    group: Annotated[str, "the process group, as the rank calls it"]
    call: Annotated[int, "its number in the group, the same for call and wait"]
    elements: Annotated[int, "the size of the tensor"]
    direction: Annotated[str, "to or from the peer"]
    peer: Annotated[int | None, "the peer's global rank; missing where any may send"]
    tag: Annotated[int, "the message's tag"]
    tensor: Annotated[str, "type and size: float32[3]"]
    step: Annotated[int, "steps of the optimizer before it"]
    begin_s: Annotated[float, "when it was called, in seconds since the job was started"]
    end_s: Annotated[float | None, "when it returned; missing while the rank is in it"]
    place: Annotated[str, "file, line and function"]


class Recorded(NamedTuple):
    """One collective of the flight recorder."""

    rank: Annotated[int, "the rank whose recorder it is"]
    group: Annotated[str, "the process group, by its label"]
    seq: Annotated[int, "the sequence number in its group"]
    op: Annotated[str, "the operation of the backend"]
    input_sizes: Annotated[list[list[int]] | None, "of each tensor that goes in"]
    input_dtypes: Annotated[list[str] | None, "of each tensor that goes in"]
    output_sizes: Annotated[list[list[int]] | None, "of each tensor that comes out"]
    pending: Annotated[bool, "whether it was not over at the dump"]
    started: Annotated[bool, "whether its device had begun it, where the backend says so"]
    wall_ns: Annotated[int, "when it was issued, in nanoseconds since 1970"]
    position: Annotated[int, "the entry's number in the dump"]
    place: Annotated[Place | None, "the user line that issued it, where the dump has stacks"]


ASKED_COLUMNS, CREATED_COLUMNS = [*CollectiveCall._fields], [*Created._fields]
TRANSFER_COLUMNS, CALL_COLUMNS = [*Transfer._fields], [*Recorded._fields]
NO_COLLECTIVE = re.compile(r"^(?:to|from|key)=")  # sends, receives and the store
# They end in the name of a wait, or make one of several.
WAITS = re.compile(r"\.wait$|^store\.|^wait_tensor$|^permute_tensor$")
PEER = re.compile(r"(to|from)=(any|\d{1,18}) tag=(\d{1,18})(?: (\w+\[[\d,]*\]))?")
CREATIONS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")


def asked_of(
    rank: int,
    spans: Iterable[Span],
    label: Callable[[int, str], str],
    thread_of: Callable[[Span], int] = operator.attrgetter("thread"),
) -> list[CollectiveCall]:
    """Collectives from the rank's own spans; `label(rank, name)` is the group's, `thread_of` says whose calls they are."""
    rows = []
    for span in spans:
        if span.kind != Kind.COLLECTIVE or NO_COLLECTIVE.search(span.detail) or WAITS.search(span.name):
            continue
        words = span.detail.split()
        root = next((natural(w[5:]) for w in words if w.startswith("root=")), None)
        splits = next((w[7:] for w in words if w.startswith("splits=")), None)
        rows.append(
            CollectiveCall(
                rank=rank,
                group=label(rank, span.group),
                call=span.number,
                op=span.name,
                root=root,
                tensors=" ".join(w for w in words if not w.startswith(("root=", "splits="))),
                splits=splits,
                step=span.step,
                thread=thread_of(span),
                place=span.place,
                begin_s=span.begin_s,
                end_s=span.end_s,
            )
        )
    return rows


def autograd_threads(rank: RankEvidence) -> set[int]:
    """Threads in which torch runs a backward on a GPU, by the newest capture."""
    return (
        {row.tid for row in rank.captures[-1].proc.threads if row.name.startswith(AUTOGRAD)}
        if rank.captures
        else set()
    )


def callers(threads: set[int], backwards: list[Span]) -> Callable[[Span], int]:
    """The thread whose call it is: what autograd's do, they do for the one that is in backward, and waits for its end."""
    begins = [span.begin_s for span in backwards]

    def thread_of(span: Span) -> int:
        at = bisect.bisect_right(begins, span.begin_s) - 1
        if span.thread not in threads or at < 0:
            return span.thread
        within = backwards[at]
        return within.thread if within.end_s is None or span.begin_s <= within.end_s else span.thread

    return thread_of


def created_of(rank: int, spans: Iterable[Span]) -> list[Created]:
    """The groups that the rank created, in its order."""
    return [
        Created(
            rank=rank,
            call=span.number,
            op=span.name,
            ranks=span.detail.partition(" ")[0].removeprefix("ranks="),
            local=span.detail.endswith(" local"),
            place=span.place,
            begin_s=span.begin_s,
            end_s=span.end_s,
        )
        for span in spans
        if span.kind == Kind.PROCESS_GROUP and span.name in CREATIONS
    ]


def recorded_of(rank: RankEvidence, groups: Groups) -> Iterator[Recorded]:
    """Collectives in the rank's newest dump."""
    dump = newest_dump(rank)
    apart, open_ = recorder.transfers(dump), {id(entry) for entry in recorder.pending(dump)}
    for position, entry in enumerate(dump.get("entries", [])):
        if position not in apart:
            yield Recorded(
                rank=rank.rank,
                group=groups.label_of(rank.rank, entry),
                seq=int(entry["collective_seq_id"]),
                op=entry["profiling_name"].partition(":")[2] or entry["profiling_name"],
                input_sizes=entry.get("input_sizes"),
                input_dtypes=entry.get("input_dtypes"),
                output_sizes=entry.get("output_sizes"),
                pending=id(entry) in open_,
                started=entry.get("state") == "started",
                wall_ns=entry.get("time_created_ns") or 0,
                position=entry.get("index", position),
                place=locations.of_entry(entry),
            )


def transfers_of(rank: int, spans: Iterable[Span]) -> list[Transfer]:
    """From the rank's own spans: one a peer, so a batch has several."""
    return [
        Transfer(
            rank=rank,
            op=span.name,
            group=span.group,
            call=span.number,
            elements=span.elements,
            direction=direction,
            peer=None if peer == "any" else int(peer),
            tag=int(tag),
            tensor=tensor,
            step=span.step,
            begin_s=span.begin_s,
            end_s=span.end_s,
            place=span.place,
        )
        for span in spans
        if span.kind == Kind.COLLECTIVE and span.detail.startswith(("to=", "from="))
        for direction, peer, tag, tensor in PEER.findall(span.detail)
    ]


def is_reducing(cell: CellEvidence, rank: RankEvidence, events: Table, calls: Table) -> bool:
    """Whether a bucket that was full in the rank's last backward is not reduced yet: an all_reduce of its size is not over.

    `events` and `calls` are the rank's own.
    """
    begins = events.loc[(events.kind == Kind.BACKWARD) & (events.phase == Phase.BEGIN), "t_s"]
    header = rank.recording.header
    if begins.empty or header is None:
        return False
    begun_ns = float(begins.iloc[-1]) * 1e9 + cell.started_mono_ns - header.monotonic_ns + header.wall_ns
    pending = calls[(calls.wall_ns >= begun_ns) & calls.pending.astype(bool)]
    reductions = pending[pending.op.str.contains("all_?reduce")]
    # As first assigned, or as rebuilt: which are in force, the rank itself may have had to guess.
    buckets = {b.elements for model in rank.ddp for b in (*model.buckets, *model.rebuilt_buckets)}
    return any(elements_of(sizes) in buckets for sizes in reductions.input_sizes)


def elements_of(sizes: list[list[int]] | None) -> int:
    """The number of elements in tensors of these sizes, all together."""
    return sum(math.prod(map(int, size)) for size in sizes or [])
