"""The last calls of a group by number, a row a rank: who is behind, who is silent, who raised; of what other tools collected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.groups import is_of_a_log, newest_dump
from nsadiag.analysis.relations.collected.camps import place_in_stack
from nsadiag.analysis.relations.pending import waits
from nsadiag.evidence.phrases import call_name, these
from nsadiag.evidence.records import Verdict
from nsadiag.reports.pictures.rows import LETTERS
from nsadiag.reports.pictures.standing import role, standing

COLUMNS = 30
SEPARATE = 64  # ranks, each with a row of its own; of more, those that are alike share one
MOST_ROWS = 64
LEGEND = {
    "done": "complete",
    "waits": "not complete: it waits",
    "other": "not complete, and another call than most have under this number",
    "issued": "issued, and not known to be complete",
    "not issued": "not issued",
    "unknown": "not known",
}


@dataclass(frozen=True, kw_only=True)
class CallCell:
    """One number of a group on one rank."""

    state: str  # a key of LETTERS
    text: str


@dataclass(frozen=True, kw_only=True)
class CallRow:
    """One rank, or several that are alike."""

    name: str
    role: str  # guilty, blocked, or nothing
    cells: tuple[CallCell, ...]
    says: str

    @property
    def letters(self) -> str:
        return "".join(LETTERS[cell.state] for cell in self.cells)


@dataclass(frozen=True, kw_only=True)
class CallGrid:
    """The rows, and the numbers of the calls above them."""

    group: str  # empty where no call is known: then the rows say what is known of each rank
    numbers: tuple[int, ...]
    rows: tuple[CallRow, ...]
    left_out: int = 0  # rows

    @property
    def legend(self) -> dict[str, str]:
        """The meaning of each letter that occurs in it."""
        seen = {cell.state for row in self.rows for cell in row.cells}
        return {LETTERS[state]: words for state, words in LEGEND.items() if state in seen}


def call_grid(case: Case, verdict: Verdict | None) -> CallGrid | None:
    """None where nsadiag recorded the job, which has pictures of its own, and of evidence of one rank without a call."""
    cell = case.cell
    if cell.collected is None:
        return None
    group = _group(case, verdict)
    numbers = _numbers(case, group)
    ranks = sorted(cell.present | cell.absent)
    if len(ranks) < 2 and not numbers:
        return None
    rows = _rows(case, verdict, group, numbers, ranks)
    return CallGrid(
        group=group, numbers=numbers, rows=tuple(rows[:MOST_ROWS]), left_out=max(0, len(rows) - MOST_ROWS)
    )


def _group(case: Case, verdict: Verdict | None) -> str:
    """That of the verdict's call, else one in which somebody waits, else that with the most calls."""
    collective = verdict.where.collective if verdict and verdict.where else None
    known = set(case.calls.group) if len(case.calls) else set()
    if collective and collective.group in known:
        return collective.group
    waiting = [wait.group for wait in waits(case)]
    return waiting[0] if waiting else min(known, default="")


def _numbers(case: Case, group: str) -> tuple[int, ...]:
    """The last of the group, up to the highest that anybody has issued."""
    issued = case.issued.get(group, {})
    last = max(issued.values(), default=0)
    shown = case.calls[case.calls.group == group] if len(case.calls) else case.calls
    first = min((int(n) for n in shown.seq), default=last) if len(shown) else last
    first = max(first - 2, last - COLUMNS + 1, 0)
    return tuple(range(first, last + 1))[-COLUMNS:] if issued else ()


def _rows(
    case: Case, verdict: Verdict | None, group: str, numbers: tuple[int, ...], ranks: list[int]
) -> list[CallRow]:
    by_kind: dict[tuple[object, ...], list[int]] = {}
    made: dict[int, CallRow] = {}
    usual = _usual(case, group, numbers)
    for rank in ranks:
        row = CallRow(
            name="",
            role=role(verdict, rank),
            cells=tuple(_cells(case, group, numbers, rank, usual)),
            says=_says(case, rank),
        )
        key = (rank,) if len(ranks) <= SEPARATE else (row.letters, row.role, row.says)
        by_kind.setdefault(key, []).append(rank)
        made[rank] = row
    found = [
        CallRow(
            name=_name(alike), role=made[alike[0]].role, cells=made[alike[0]].cells, says=made[alike[0]].says
        )
        for alike in by_kind.values()
    ]
    # Where rows are of kinds, those of the guilty come first.
    return found if len(ranks) <= SEPARATE else sorted(found, key=lambda row: row.role != "guilty")


def _name(ranks: list[int]) -> str:
    return these(ranks) if len(ranks) < 2 else f"{these(ranks)} ({len(ranks):,})"


def _usual(case: Case, group: str, numbers: tuple[int, ...]) -> Mapping[int, str]:
    """By number the operation that most ranks have there."""
    found: dict[int, str] = {}
    rows = case.calls[case.calls.group == group] if len(case.calls) else case.calls
    for number in numbers:
        ops = [str(op) for op in rows[rows.seq == number].op] if len(rows) else []
        if ops:
            found[number] = max(sorted({*ops}), key=ops.count)
    return found


def _cells(
    case: Case, group: str, numbers: tuple[int, ...], rank: int, usual: Mapping[int, str]
) -> Iterator[CallCell]:
    calls = case.calls
    mine = calls[(calls["rank"] == rank) & (calls.group == group)] if len(calls) else calls
    by_number: dict[int, dict[str, Any]] = (
        {int(row["seq"]): row for row in mine.to_dict()} if len(mine) else {}
    )
    issued = case.issued.get(group, {}).get(rank)
    for number in numbers:
        call = by_number.get(number)
        if call is not None:
            yield _of_call(call, number, group, usual)
        else:
            state = _state(case, group, rank, number, issued, [*by_number])
            yield CallCell(
                state=state, text=f"#{number}: {LEGEND.get(state, 'nothing was heard of this rank')}"
            )


def _of_call(call: Mapping[str, Any], number: int, group: str, usual: Mapping[int, str]) -> CallCell:
    op, pending = str(call["op"]), bool(call["pending"])
    state = "done" if not pending else "other" if op != usual.get(number, op) else "waits"
    return CallCell(state=state, text=f"{call_name(op, number, group)}: {LEGEND[state]}")


def _state(case: Case, group: str, rank: int, number: int, issued: int | None, known: list[int]) -> str:
    """The state of a call that is not on record for the rank."""
    if rank in case.cell.absent or issued is None:
        return "silent"
    if number > issued:
        # A log tells of a rank without a timeout only that.
        told = issued > 0 or not is_of_a_log(case.cell.rank(rank))
        return "not issued" if told else "unknown"
    if is_of_a_log(case.cell.rank(rank)):
        return "done" if number <= _completed(case, rank, group) else "issued"
    return "done" if known and number < min(known) else "issued"


def _completed(case: Case, rank: int, group: str) -> int:
    """The last number that the watchdog says is complete; -1 where it says none."""
    dump = newest_dump(case.cell.rank(rank))
    for name, status in dump.get("pg_status", {}).items():
        described = str(dump.get("pg_config", {}).get(name, {}).get("desc") or name)
        if case.groups.label(rank, described) == group:
            completed = status.get("last_completed_collective")
            return -1 if completed is None else int(completed)
    return -1


def _says(case: Case, rank: int) -> str:
    """Its error, its line, or its end in words."""
    evidence = next((each for each in case.cell.ranks if each.rank == rank), None)
    if evidence is None:
        return "silent: nothing was heard of it" if rank in case.cell.absent else ""
    if evidence.exception:
        return f"raised {headline(first_of(evidence.exception))}"[:160]
    shown = [capture for capture in evidence.captures if capture.stacks]
    place = place_in_stack(shown[-1]) if shown else None
    if place and place.call:
        return place.words
    if said := standing(case, evidence):
        return said
    pending = (
        case.calls[(case.calls["rank"] == rank) & case.calls.pending.astype(bool)]
        if len(case.calls)
        else None
    )
    if pending is not None and len(pending):
        first = pending.sort_values("seq").iloc[0]
        did = "timed out in" if is_of_a_log(evidence) else "waits in"
        return f"{did} {call_name(str(first.op), int(first.seq), str(first.group))}"
    return "reported no timeout" if is_of_a_log(evidence) else ""
