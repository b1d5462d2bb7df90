"""The verdict on evidence from other tools: by the same rules, and no stronger than one snapshot allows."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from nsadiag.analysis.external.agreeing import all_over
from nsadiag.analysis.external.dump_findings import dump_finding
from nsadiag.analysis.external.load import ExternalEvidence, load_external
from nsadiag.analysis.external.log_findings import (
    communicator_finding,
    ended_with_code,
    never_came,
    straggler_finding,
)
from nsadiag.analysis.external.recognise import Gathered, gather
from nsadiag.analysis.external.snapshots import GAPS, STRONGEST, Movement, movement_of
from nsadiag.analysis.judgement.conclude import verdict_of
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.errors import UsageError
from nsadiag.evidence.documents.watch import NO_END, Look, Watch
from nsadiag.evidence.records import Evidence, Finding, Progress, Rejected, Times, Verdict

LOOKS_FOR = (
    "flight-recorder dumps (pickle or JSON), py-spy dump (text or --json), faulthandler's stacks, "
    "torchrun --log-dir, logs with tracebacks or timeouts, DeepSpeed's summaries of communication"
)


def judge_external(path: Path) -> Verdict:
    """Raises UsageError where there is nothing that can be judged."""
    gathered = gather(path)
    if gathered.is_empty:
        raise UsageError(f"nothing in {path} is evidence that nsadiag knows", f"it looks for {LOOKS_FOR}")
    external = load_external(gathered)
    statements = external.statements
    unfinished = communicator_finding(statements.inits, external.cell.world_size)
    known = (external.dumps.ranks, statements.never_came[0], unfinished, straggler_finding(statements.waits))
    if not (any(known) or _says_why(external.cell)):
        raise UsageError(_why_nothing(path, gathered, external), f"it looks for {LOOKS_FOR}")
    found, failed = _finding(external)
    cell = external.cell
    return verdict_of(cell, _believable(found, external), failed, progress=Progress(), times=Times())


def _why_nothing(path: Path, gathered: Gathered, external: ExternalEvidence) -> str:
    if external.cell.gaps:
        return f"nothing in {path} could be read: {external.cell.gaps[0]}"
    count = len(gathered.logs)
    return (
        f"{count} log{'s' if count > 1 else ''} in {path}, and no traceback, timeout or end of a rank in them"
    )


def _finding(external: ExternalEvidence) -> tuple[Finding, tuple[str, ...]]:
    """Prefer stacks, tracebacks and ends of ranks: they show why, where dumps only show which rank."""
    cell = external.cell
    came_not, source = external.statements.never_came
    if came_not and not any(r.exception for r in cell.ranks if r.rank in came_not):
        return never_came(external, came_not, source), ()
    by_dumps = dump_finding(external) or (all_over(external) if external.dumps.ranks else None)
    if by_dumps and not _says_why(cell):
        return by_dumps, ()
    by_nccl = communicator_finding(external.statements.inits, cell.world_size)
    if by_nccl and not _says_why(cell):
        return by_nccl, ()
    late = straggler_finding(external.statements.waits)
    if late and by_dumps is None and not _says_why(cell):
        return late, ()
    # Only now: all rules take as long to load as many dumps do.
    from nsadiag.analysis.case import Case
    from nsadiag.analysis.resolve import resolve

    stuck = dataclasses.replace(cell, watch=_watch(external))
    found, failed = resolve(Case(stuck)).outcome
    if found.cls in ("rank_exited_early", "unknown", "healthy") and (first := _first_with_a_code(cell)):
        return ended_with_code(external, (first.rank,), first.end.exit_code or 0), failed
    if by_dumps is None or found.cls not in ("unknown", "healthy"):
        return _of_all(found, by_dumps, external), failed
    return by_dumps, failed


def _of_all(found: Finding, by_dumps: Finding | None, external: ExternalEvidence) -> Finding:
    """Detectors saw the few ranks that were looked at closely, which stand for all that are like them."""
    few = len(external.details.documents) == len(external.dumps.ranks)
    if by_dumps is None or few or not {*found.guilty_ranks} <= {*by_dumps.guilty_ranks}:
        return found
    return dataclasses.replace(
        found,
        guilty_ranks=by_dumps.guilty_ranks,
        blocked_ranks=by_dumps.blocked_ranks,
        summary=f"{found.summary} All dumps together: {by_dumps.summary}",
    )


def _first_with_a_code(cell: CellEvidence) -> RankEvidence | None:
    """It did not end of its own accord, but by something that its own log would tell."""
    coded = [r for r in cell.ranks if r.end.exit_code and not r.exception]
    return min(coded, key=lambda r: r.end.t_s or 0.0, default=None)


def _says_why(cell: CellEvidence) -> bool:
    return any(r.exception or r.end != NO_END or any(c.stacks for c in r.captures) for r in cell.ranks)


def _watch(external: ExternalEvidence) -> Watch:
    """Assume that a job whose stacks or dumps were taken is stuck, where nothing shows that it moves."""
    cell = external.cell
    broke = _broke(cell)
    movement = movement_of(cell)
    if broke or movement == "moved":
        return dataclasses.replace(cell.watch, launcher_exit_code=1 if broke else None)
    look = Look(judgement="still", reason=GAPS[movement], t_s=0.0, first=1, second=1)
    return dataclasses.replace(cell.watch, stopped="hang", looks=(look,))


def _believable(found: Finding, external: ExternalEvidence) -> Finding:
    """Sources are files that are there, and nothing is said of a second snapshot that nobody took."""
    movement = movement_of(external.cell)
    found = dataclasses.replace(
        found,
        evidence=tuple(e for item in found.evidence if (e := _that_exists(item, external))),
        rejected=tuple(row for each in found.rejected if (row := _still_true(each, external))),
    )
    if found.cls == "unknown" and found.mechanism == "unknown" and not _broke(external.cell):
        return _open(found, external.cell, movement)
    if found.outcome != "hung":
        return found
    most_sure = STRONGEST["none" if external.dumps.ranks else movement]
    return dataclasses.replace(
        found,
        strength=found.strength.at_most(most_sure),
        gaps=tuple(dict.fromkeys((*found.gaps, GAPS[movement]))),
    )


def _still_true(item: Rejected, external: ExternalEvidence) -> Rejected | None:
    """A class that is ruled out, with the file as it is called here; None where the fact is of snapshots that nobody took."""
    if item.source is None:
        return None if re.search(r"\bsnapshots?\b", item.because) else item
    found = _that_exists(Evidence(claim=item.because, source=item.source), external)
    return dataclasses.replace(item, because=found.claim, source=found.source) if found else None


def _broke(cell: CellEvidence) -> bool:
    return any(r.exception or r.end != NO_END for r in cell.ranks)


def _open(found: Finding, cell: CellEvidence, movement: Movement) -> Finding:
    """The detector for what is unknown speaks of a run that was watched."""
    seen = sum(any(c.stacks for c in r.captures) for r in cell.ranks)
    moved = ", and the job moved between them" if movement == "moved" else ""
    return dataclasses.replace(
        found,
        outcome="unknown",
        summary=f"Stacks of {seen} rank{'s' if seen > 1 else ''} show nobody that the others wait for{moved}.",
        gaps=(*found.gaps, GAPS[movement]),
        next="take the stacks again some seconds later, and the flight recorder's dumps with them",
    )


def _that_exists(item: Evidence, external: ExternalEvidence) -> Evidence | None:
    """Detectors name the file that a run directory would have; here the fact stood in another."""
    path, _, place = item.source.partition("#")
    item = dataclasses.replace(item, claim=re.sub(r",? in both snapshots\b", "", item.claim))
    if path == "watch.json" or "same line" in item.claim:
        return None
    if path == "ends.json":
        return (
            dataclasses.replace(item, source=external.statements.launcher)
            if external.statements.launcher
            else None
        )
    root, parts = external.cell.path, Path(path).parts
    for length in range(len(parts), 0, -1):
        file = root.joinpath(*parts[:length])
        if file.is_file() and parts[-1] == "fr.json":
            file = _dump_beside(file, external.cell)
        if file.is_file():
            place = _place_in(file, place, item, external.cell) if length < len(parts) else place
            return dataclasses.replace(
                item, source="#".join(p for p in (file.relative_to(root).as_posix(), place) if p)
            )
    return None


def _dump_beside(file: Path, cell: CellEvidence) -> Path:
    """A rank's last snapshot may be a stack; what it issued stands in its dump."""
    relative = file.relative_to(cell.path).as_posix()
    for rank in cell.ranks:
        if any(c.source == relative for c in rank.captures):
            return next((cell.path / c.source for c in rank.captures if c.flight_recorder), file)
    return file


def _place_in(file: Path, place: str, item: Evidence, cell: CellEvidence) -> str:
    """The number of an entry in the whole dump, the line of a traceback in a log."""
    relative = file.relative_to(cell.path).as_posix()
    entry = re.fullmatch(r"entries\[(\d+)\]", place)
    for rank in cell.ranks:
        for capture in rank.captures:
            entries = capture.flight_recorder.get("entries", [])
            if entry and capture.source == relative and int(entry[1]) < len(entries):
                return f"entries[{entries[int(entry[1])].get('index', entry[1])}]"
        shown = rank.exception.source if rank.exception else ""
        if "exception.json" in item.source and shown.startswith(f"{relative}#"):
            return shown.partition("#")[2]
    return "" if entry else place
