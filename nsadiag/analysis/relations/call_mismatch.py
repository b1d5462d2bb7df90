"""The first call on which the ranks of a group disagree; later disagreements follow from it."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.collectives import elements_of
from nsadiag.analysis.facts.exceptions import first_of
from nsadiag.analysis.facts.texts.fingerprints import Fingerprint, fingerprints
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.phrases import tensor_names
from nsadiag.evidence.records import Collective, Place

Kind = Literal["operation", "root", "size", "type", "splits"]
Aspects = list[tuple[Kind, dict[int, Any]]]  # of a call, in the order in which they are compared: by rank
# All ranks give as many elements of one type; the others may rightly differ, or are compared by splits.
STRICT = re.compile(
    r"^_?(all_?reduce|broadcast|reduce|all_gather|reduce_scatter|all_gather_into_tensor|all_gather_tensor"
    r"|all_gather_single|reduce_scatter_tensor|reduce_scatter_single|gather|scatter)(_base|_coalesced|_autograd)*$"
)
# As the flight recorder has them: what ranks gather or scatter is listed at the root alone.
STRICT_RECORDED = re.compile(
    r"^_?(all_?reduce|broadcast|reduce|all_gather|reduce_scatter)(_base|_coalesced|_into_tensor)*$"
)
EXCHANGE = re.compile(r"^_?all_?to_?all")
SHAPE = re.compile(r"(?:(\d{1,6})x)?(\w+)\[([\d,]*)\]")
CLEAR_SIDE = 3  # ranks
TRUNCATED = re.compile(r"\+\d+\)")


@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """One rank's arguments to a call."""

    rank: int
    op: str
    place: Place | None
    what: str  # for a sentence
    key: tuple[Any, ...]  # equal where ranks agree
    source: str
    sizes: list[list[int]] | None = None
    dtypes: list[str] | None = None
    thread: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """One call of a group, by its number, and what its ranks asked for under it."""

    group: str
    call: int
    kind: Kind
    asked: dict[int, CallArguments]
    recorded: bool  # by the flight recorder, and not by the recording alone
    # By rank, how many others that say nothing themselves asked for the same.
    alike: Mapping[int, int] = field(default_factory=dict)

    def collective(self, rank: int) -> Collective:
        one = self.asked[rank]
        return Collective(op=one.op, group=self.group, seq=self.call, sizes=one.sizes, dtypes=one.dtypes)

    @property
    def places(self) -> set[tuple[str, int]]:
        return {(a.place.file, a.place.line) for a in self.asked.values() if a.place}


def shapes(tensors: str) -> list[tuple[str, int]]:
    """Type and elements of each tensor in the text of the recording."""
    found = []
    for times, dtype, sizes in SHAPE.findall(tensors):
        elements = math.prod(int(n) for n in sizes.split(",") if n)
        found += [(dtype, elements)] * int(times or 1)
    return found


def in_black_boxes(case: Case) -> list[Disagreement]:
    """By calls from Python; one a group at most."""
    return case.once(_in_black_boxes)


def _in_black_boxes(case: Case) -> list[Disagreement]:
    asked = case.asked
    calls = [*zip(asked.group, asked.call, strict=True)]
    said: dict[Any, set[Any]] = defaultdict(set)
    for call, *what in zip(calls, asked.op, asked.tensors, asked.root.map(str), strict=True):
        said[call].add(tuple(what))
    # Their splits are compared crosswise: what is equal on all ranks may not fit.
    varied = [len(said[c]) > 1 or op.startswith("all_to_all") for c, op in zip(calls, asked.op, strict=True)]
    found = []
    for group, frame in asked.loc[varied].groupby("group"):
        members = case.groups.members(str(group))
        rows = frame[frame["rank"].isin(members)]
        for _, same in rows.groupby("call", sort=True):
            if same["rank"].nunique() > 1 and (
                one := _asked_otherwise(case.cell, str(group), same, sorted(members))
            ):
                found.append(one)
                break
    return found


def still_disagree(case: Case, one: Disagreement, calls: int) -> bool:
    """Whether the ranks disagree so in one of the last calls that all of them made: NCCL may deliver rubbish, and go on."""
    rows = case.asked[(case.asked.group == one.group) & case.asked["rank"].isin(one.asked)]
    last = int(rows.groupby("rank").call.max().min())
    late = rows[(rows.call > last - calls) & (rows.call <= last)]
    members = sorted(case.groups.members(one.group))
    found = (_asked_otherwise(case.cell, one.group, same, members) for _, same in late.groupby("call"))
    return any(f is not None and (f.kind, f.places) == (one.kind, one.places) for f in found)


def _asked_otherwise(cell: CellEvidence, group: str, same: Any, members: list[int]) -> Disagreement | None:
    rows = {int(row["rank"]): row for row in same.to_dict()}
    call = int(next(iter(rows.values()))["call"])

    def asked_by(rank: int, key: Any) -> CallArguments:
        row = rows[rank]
        return CallArguments(
            rank=rank,
            op=row["op"],
            place=locations.of_text(row["place"]),
            what=_said(row),
            key=(key,),
            source=f"{cell.rank(rank).source}/blackbox.bin",
            thread=row["thread"],
        )

    return _first(group, call, _aspects(rows, members), asked_by, recorded=False)


def _first(
    group: str, call: int, aspects: Aspects, asked_by: Callable[[int, Any], CallArguments], *, recorded: bool
) -> Disagreement | None:
    """The disagreement on the first aspect of a call that is not the same on all ranks."""
    for kind, keys in aspects:
        # Of two ranks whose splits do not meet, each disagrees with one peer.
        if len(set(keys.values())) > 1 or (kind == "splits" and any(keys.values())):
            asked = {rank: asked_by(rank, key) for rank, key in keys.items()}
            return Disagreement(group=group, call=call, kind=kind, asked=asked, recorded=recorded)
    return None


def _said(row: dict[Any, Any]) -> str:
    words = [str(row["op"]), str(row["tensors"])]
    words += [f"root {row['root']:.0f}"] if row["root"] is not None and row["root"] == row["root"] else []
    words += [f"splits {row['splits']}"] if row["splits"] else []
    return " ".join(word for word in words if word)


def _aspects(rows: dict[int, dict[Any, Any]], members: list[int]) -> Aspects:
    """Aspects that must be the same on all ranks, in the order in which they are looked at."""
    ops = {rank: row["op"] for rank, row in rows.items()}
    if len(set(ops.values())) > 1:
        return [("operation", ops)]
    op = next(iter(ops.values()))
    found: Aspects = [("root", {r: str(row["root"]) for r, row in rows.items()})]
    if op.startswith("all_to_all"):
        return [*found, ("splits", _unmatched(rows, members))]
    if STRICT.match(op):
        told = {r: shapes(_compared(op, row["tensors"])) for r, row in rows.items()}
        found.append(("type", {r: tuple(sorted({dtype for dtype, _ in t})) for r, t in told.items()}))
        found.append(("size", {r: tuple(sorted(n for _, n in t)) for r, t in told.items()}))
    return found


def _compared(op: str, tensors: str) -> str:
    """The list that is gathered or scattered, if one is: its parts, and so what each rank gives, may differ in size."""
    listed = re.search(r"\([^)]*\)", tensors)
    return listed[0] if listed and not TRUNCATED.search(tensors) and "coalesced" not in op else tensors


def _unmatched(rows: dict[int, dict[Any, Any]], members: list[int]) -> dict[int, int]:
    """The number of peers with which each rank disagrees on what travels between the two; all 0 where all agree."""
    sides = {r: _rows_per_member(row, len(members)) for r, row in rows.items()}
    wrong = dict.fromkeys(sorted(rows), 0)
    for i, sender in enumerate(members):
        for j, receiver in enumerate(members):
            there, here = sides.get(sender), sides.get(receiver)
            if there and here and there[1][j] != here[0][i]:
                wrong[sender] += sender != receiver
                wrong[receiver] += 1
    return wrong


def _rows_per_member(row: dict[Any, Any], size: int) -> tuple[list[int], list[int]] | None:
    """Received from, and sent to, each member; None where that cannot be told."""
    tensors = str(row["tensors"])
    if row["op"] == "all_to_all":
        lists = re.findall(r"\([^)]*\)", tensors)
        told = [[n for _, n in shapes(each)] for each in lists]
        fits = len(told) == 2 and all(len(each) == size for each in told)
        return (told[0], told[1]) if fits and not TRUNCATED.search(tensors) else None
    given = str(row["splits"] or "even/even").split("/")
    lengths = [int([*sizes.split(","), "1"][0] or 1) for _, _, sizes in SHAPE.findall(tensors)]
    if len(given) != 2 or len(lengths) != 2:
        return None
    sides = [
        [length // size] * size if side == "even" else [int(n) for n in side.split(",")]
        for side, length in zip(given, lengths, strict=True)
    ]
    return (sides[0], sides[1]) if all(len(side) == size for side in sides) else None


def in_both(case: Case) -> list[Disagreement]:
    """By recorders; by recordings where these tell of the same call, since they know what a line asked for before."""
    called = {(one.group, one.call, one.kind, *sorted(one.asked)): one for one in in_black_boxes(case)}
    return [
        called.get((one.group, one.call, one.kind, *sorted(one.asked)), one) for one in in_recorders(case)
    ]


def in_recorders(case: Case) -> list[Disagreement]:
    """By flight-recorder dumps, which also have what DDP and FSDP issue from C++; one a group at most."""
    calls = case.calls
    if calls.empty:
        return []
    calls = calls.assign(
        said=calls.op + " " + calls.input_sizes.astype(str) + " " + calls.input_dtypes.astype(str)
    )
    varied = calls.groupby(["group", "seq"])["said"].transform("nunique") > 1
    exchanged = calls.op.map(lambda op: bool(EXCHANGE.match(op)))
    found = []
    for group, frame in calls[varied | exchanged].groupby("group"):
        members = case.groups.members(str(group))
        for _, same in frame.groupby("seq", sort=True):
            if one := _recorded_otherwise(case.cell, str(group), same, members):
                found.append(one)
                break
    return found


def _recorded_otherwise(
    cell: CellEvidence, group: str, same: Any, members: Collection[int]
) -> Disagreement | None:
    rows = {int(row["rank"]): row for row in same.to_dict()}
    ops = {rank: str(row["op"]) for rank, row in rows.items()}
    aspects: Aspects = [("operation", ops)]
    if all(STRICT_RECORDED.match(op) for op in ops.values()):
        aspects.append(("type", {r: str(row["input_dtypes"]) for r, row in rows.items()}))
        aspects.append(("size", {r: elements_of(row["input_sizes"]) for r, row in rows.items()}))
    elif {*rows} == {*members} and all(EXCHANGE.match(op) for op in ops.values()):
        aspects.append(("splits", dict.fromkeys(rows, int(_does_not_fit([*rows.values()])))))
    seq = int(next(iter(rows.values()))["seq"])
    return _first(group, seq, aspects, lambda rank, key: _recorded(cell, rows[rank], key), recorded=True)


def _does_not_fit(rows: list[dict[Any, Any]]) -> bool:
    """Whether members that are in an exchange receive another amount than they send, whatever the splits are."""
    known = all(row["input_sizes"] and row["output_sizes"] for row in rows)
    # One that no device has begun stands behind another call.
    is_on = all(row["pending"] for row in rows) and any(row["started"] for row in rows)
    given, got = (sum(elements_of(row[f"{way}_sizes"]) for row in rows) for way in ("input", "output"))
    return known and is_on and given != got


def _recorded(cell: CellEvidence, row: dict[Any, Any], key: Any) -> CallArguments:
    rank = cell.rank(int(row["rank"]))
    capture = next(c for c in reversed(rank.captures) if c.flight_recorder)
    sizes, dtypes = row["input_sizes"], row["input_dtypes"]
    return CallArguments(
        rank=rank.rank,
        op=str(row["op"]),
        place=row["place"] or locations.of_call(rank, int(row["wall_ns"])),
        what=" ".join([str(row["op"]), *tensor_names(sizes, dtypes), *_received(row)]),
        key=(key,),
        source=f"{capture.source}/fr.json#entries[{row['position']}]",
        sizes=sizes,
        dtypes=dtypes,
    )


def _received(row: dict[Any, Any]) -> list[str]:
    """The sizes of the other side, of a call in which they are the rank's own."""
    return (
        ["into", *tensor_names(row["output_sizes"], None)]
        if EXCHANGE.match(str(row["op"])) and row["output_sizes"]
        else []
    )


def in_messages(case: Case) -> list[Disagreement]:
    """By what TORCH_DISTRIBUTED_DEBUG=DETAIL says in the exceptions of ranks: where calls are made past torch.distributed, nothing else tells."""
    said: dict[int, Fingerprint] = {}
    met: list[tuple[Fingerprint, ...]] = []
    for rank in case.cell.ranks:
        met.append(tuple(fingerprints(first_of(rank.exception).message if rank.exception else "")))
        for number, one in enumerate(met[-1]):
            # What a rank says of its own call goes before what a peer says of it.
            said = {**said, one.rank: one} if number == 0 else {one.rank: one, **said}
    known = {r: one for r, one in said.items() if any(r == rank.rank for rank in case.cell.ranks)}
    sizes, dtypes = ({r: str(getattr(one, name)) for r, one in known.items()} for name in ("sizes", "dtypes"))
    aspects: Aspects = [
        ("operation", {r: one.op for r, one in known.items()}), ("type", dtypes), ("size", sizes)
    ]  # fmt: skip
    call = next((one.number for one in known.values()), 0)
    found = _first(
        "", call, aspects, lambda r, key: _said_by_torch(case.cell.rank(r), known[r], key), recorded=True
    )
    return [replace(found, alike=_passed_over(case.cell, met, known))] if found else []


def _passed_over(
    cell: CellEvidence, met: list[tuple[Fingerprint, ...]], known: Mapping[int, Fingerprint]
) -> dict[int, int]:
    """By rank, how many silent ranks asked for the same: torch compares in the order of ranks, and stops at the first that differs.

    Only where these are most of the job, and a clear side where a log tells of fewer ranks than it has: those after that one
    may have asked for either.
    """
    found: dict[int, int] = {}
    for own, *others in (each for each in met if len(each) > 1):
        agreed = {*range(others[0].rank), own.rank}
        if len(agreed) >= CLEAR_SIDE and 2 * len(agreed) > cell.world_size:
            found[own.rank] = len(agreed - known.keys())
    return found


def _said_by_torch(rank: RankEvidence, one: Fingerprint, key: Any) -> CallArguments:
    return CallArguments(
        rank=rank.rank,
        op=one.op,
        place=locations.of_exception(rank.exception) if rank.exception else None,
        what=" ".join([one.op, *tensor_names(one.sizes, one.dtypes)]),
        key=(key,),
        source=f"{rank.source}/exception.json",
        sizes=one.sizes,
        dtypes=one.dtypes,
    )
