"""Collectives of a rank: calls from Python by its recording, and calls to the backend by torch's flight recorder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from nsadiag.analysis.facts.groups import Groups, newest_dump, raw_name
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence import recorder
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table


class Asked(NamedTuple):
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


class Recorded(NamedTuple):
    """One collective of the flight recorder."""

    rank: Annotated[int, "the rank whose recorder it is"]
    group: Annotated[str, "the process group, by its label"]
    seq: Annotated[int, "the sequence number in its group"]
    op: Annotated[str, "the operation of the backend"]
    input_sizes: Annotated[list[list[int]] | None, "of each tensor that goes in"]
    input_dtypes: Annotated[list[str] | None, "of each tensor that goes in"]
    pending: Annotated[bool, "whether it was not over at the dump"]
    wall_ns: Annotated[int, "when it was issued, in nanoseconds since 1970"]
    position: Annotated[int, "the entry's number in the dump"]


ASKED_COLUMNS, CREATED_COLUMNS, CALL_COLUMNS = [*Asked._fields], [*Created._fields], [*Recorded._fields]
NO_COLLECTIVE = r"^(?:to|from|key)="
# They end in the name of a wait, or make one of several.
WAITS = r"\.wait$|^store\.|^wait_tensor$|^permute_tensor$"
CREATIONS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")


def paired(events: Table) -> list[dict[Any, Any]]:
    """Begin events of one rank, each with the time of its end; None where it has none."""
    open_: dict[tuple[Any, ...], list[dict[Any, Any]]] = {}
    rows: list[dict[Any, Any]] = []
    for event in events.to_dict():
        key = event["name"], event["a"], event["group"], event["site"], event["thread"]
        if event["phase"] == Phase.BEGIN:
            rows.append({**event, "end_s": None})
            open_.setdefault(key, []).append(rows[-1])
        elif open_.get(key):
            open_[key].pop()["end_s"] = event["t_s"]
    return rows


def asked_of(rank: int, events: Table, label: Any) -> list[Asked]:
    """Collectives from the rank's own events; `label(rank, name)` is the group's."""
    mine = events[(events.kind == Kind.COLLECTIVE) & ~events.detail.str.contains(NO_COLLECTIVE)]
    mine = mine[~mine.name.str.contains(WAITS)]
    rows = []
    for event in paired(mine):
        words = str(event["detail"]).split()
        root = next((int(w[5:]) for w in words if w.startswith("root=") and w[5:].isdigit()), None)
        splits = next((w[7:] for w in words if w.startswith("splits=")), None)
        rows.append(
            Asked(
                rank=rank,
                group=label(rank, event["group"]),
                call=event["a"],
                op=event["name"],
                root=root,
                tensors=" ".join(w for w in words if not w.startswith(("root=", "splits="))),
                splits=splits,
                step=event["step"],
                thread=event["thread"],
                place=event["site"],
                begin_s=event["t_s"],
                end_s=event["end_s"],
            )
        )
    return rows


def created_of(rank: int, events: Table) -> list[Created]:
    """The groups that the rank created, in its order."""
    mine = events[(events.kind == Kind.PROCESS_GROUP) & events.name.isin(CREATIONS)]
    return [
        Created(
            rank=rank,
            call=event["a"],
            op=event["name"],
            ranks=str(event["detail"]).partition(" ")[0].removeprefix("ranks="),
            local=str(event["detail"]).endswith(" local"),
            place=event["site"],
            begin_s=event["t_s"],
            end_s=event["end_s"],
        )
        for event in paired(mine)
    ]


def recorded_of(rank: RankEvidence, groups: Groups) -> Iterator[Recorded]:
    """Collectives in the rank's newest dump."""
    dump = newest_dump(rank)
    apart, open_ = recorder.transfers(dump), {id(entry) for entry in recorder.pending(dump)}
    for position, entry in enumerate(dump.get("entries", [])):
        if position not in apart:
            yield Recorded(
                rank=rank.rank,
                group=groups.label(rank.rank, raw_name(*entry["process_group"])),
                seq=int(entry["collective_seq_id"]),
                op=entry["profiling_name"].partition(":")[2] or entry["profiling_name"],
                input_sizes=entry.get("input_sizes"),
                input_dtypes=entry.get("input_dtypes"),
                pending=id(entry) in open_,
                wall_ns=entry.get("time_created_ns") or 0,
                position=position,
            )
