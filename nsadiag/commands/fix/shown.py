"""The result of `nsadiag fix` as lines for a terminal, a document, or Markdown with suggestions for a pull request."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from nsadiag.commands.fix.fix import Fixed, Tried
from nsadiag.errors import NsadiagError
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir, write_json
from nsadiag.evidence.phrases import count
from nsadiag.evidence.rehearsal.repair import Alternative, Repair
from nsadiag.printing import note
from nsadiag.repair.change import FileChange
from nsadiag.reports.formats.registry import write_reports

MOST_TRIED = 12


def lines(result: Fixed) -> Iterator[str]:
    """The patch, then its proof."""
    best = result.best
    if best is None:
        yield f"nothing: {count(len(result.tried), 'candidate')} tried, and none agrees"
    else:
        yield f"{best.judgement.said}: {best.candidate.what}" + (
            f"; {best.judgement.cost}" if best.judgement.cost else ""
        )
        yield from ("", *best.candidate.change.diff().splitlines(), "")
        for row in best.judgement.rows:
            yield f"  {'shown    ' if row.met else 'not shown'}  {row.criterion}: {row.because}"
        if result.written:
            yield "written to " + ", ".join(file.path for file in best.candidate.change.files)
    for tried in [tried for tried in result.tried if tried is not best][:MOST_TRIED]:
        yield f"  tried  {tried.candidate.what}: {tried.judgement.level}; {tried.judgement.reason}"
    for other in result.untried[:MOST_TRIED]:
        yield f"  not tried  {other.what}{'; ' * bool(other.cost)}{other.cost}"
    if len(result.untried) > MOST_TRIED:
        yield f"  and {len(result.untried) - MOST_TRIED} more: --json has them"


def document(result: Fixed) -> dict[str, Any]:
    """The same for programs, with all that was tried and its proof."""
    best = result.best
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "fix",
        "run": str(result.origin.directory),
        "class": result.origin.verdict.cls,
        "result": best.judgement.level if best else "nothing",
        "patch": _tried(best) if best else None,
        "written": result.written,
        "tried": [_tried(tried) for tried in result.tried if tried is not best],
        "untried": [{"what": each.what, "diff": each.change.diff()} for each in result.untried],
        "seconds": round(result.seconds, 1),
    }


def _tried(tried: Tried) -> dict[str, Any]:
    return {
        "what": tried.candidate.what,
        "template": tried.candidate.template or None,
        "result": tried.judgement.level,
        "cost": _cost(tried) or None,
        "diff": tried.candidate.change.diff(),
        "proof": [vars(row) for row in tried.judgement.rows],
    }


def _cost(tried: Tried) -> str:
    return tried.judgement.cost or tried.candidate.cost


def repair(result: Fixed) -> Repair:
    """The result as the run directory keeps it."""
    best = result.best
    others = [
        Alternative(
            what=tried.candidate.what,
            result=tried.judgement.level,
            because=tried.judgement.reason,
            diff=tried.candidate.change.diff(),
        )
        for tried in result.tried
        if tried is not best
    ]
    others += [Alternative(what=each.what, diff=each.change.diff()) for each in result.untried]
    if best is None:
        return Repair(result="nothing", others=tuple(others), seconds=round(result.seconds, 1))
    return Repair(
        result=best.judgement.level,
        what=best.candidate.what,
        template=best.candidate.template,
        cost=_cost(best),
        diff=best.candidate.change.diff(),
        proof=best.judgement.rows,
        others=tuple(others),
        written=result.written,
        seconds=round(result.seconds, 1),
    )


def keep(result: Fixed) -> None:
    """Leaves fix.json in the run directory, and shows it in the reports there; a directory that may not be written stays as it is."""
    run = RunDir(path=result.origin.directory)
    try:
        write_json(run.repair, dataclasses.asdict(repair(result)))
        write_reports(run.path)
    except (OSError, NsadiagError) as error:
        note(f"nsadiag: the run directory does not show the patch: {error}")


def markdown(result: Fixed) -> Iterator[str]:
    """A comment for a pull request: the patch, and a table of its proof."""
    best = result.best
    if best is None:
        yield f"**nothing**: {count(len(result.tried), 'candidate')} tried, and none agrees"
        return
    cost = f"; {best.judgement.cost}" if best.judgement.cost else ""
    yield f"**{best.judgement.said}**: {best.candidate.what}{cost}"
    yield from ("", "```diff", *best.candidate.change.diff().splitlines(), "```", "")
    yield from ("| criterion | shown | because |", "|---|---|---|")
    for row in best.judgement.rows:
        because = row.because.replace("|", "\\|")
        yield f"| {row.criterion} | {'yes' if row.met else 'no'} | {because} |"
    for file in best.candidate.change.files:
        yield from suggestion(file)


def suggestion(file: FileChange) -> Iterator[str]:
    """One block that GitHub applies: the lines from the first to the last that change, as they become."""
    old, new = file.before.splitlines(), file.after.splitlines()
    top = next(
        (n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]),
        min(len(old), len(new)),
    )
    ends = zip(reversed(old[top:]), reversed(new[top:]), strict=False)
    bottom = next((n for n, pair in enumerate(ends) if pair[0] != pair[1]), min(len(old), len(new)) - top)
    first, last = top + 1, len(old) - bottom
    if last < first:  # lines are only added: a suggestion replaces at least one
        last, bottom = first, bottom - 1
    yield from ("", f"`{file.path}`, lines {first} to {last}:", "", "```suggestion")
    yield from new[top : len(new) - bottom]
    yield "```"
