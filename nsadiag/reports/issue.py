"""A bug report to paste into an issue tracker: what happened, where each rank stood, how to see it again."""

from __future__ import annotations

import re

from nsadiag.analysis.load import CellEvidence, RankEvidence, load_cell
from nsadiag.errors import UsageError
from nsadiag.reports.markdown import template_of
from nsadiag.reports.model import MatrixReport, Report, RunReport

FRAMES_SHOWN = 25
ALIKE_SHOWN = 8


def render_issue(report: Report) -> str:
    """Markdown without a link to anything on this machine. Of a matrix: its most frequent finding. Raises UsageError."""
    run, cells = (_most_frequent(report), report.cells) if isinstance(report, MatrixReport) else (report, ())
    evidence = load_cell(run.directory)
    text = template_of("issue.md.jinja").render(
        run=run,
        cells=cells,
        stacks=_stacks(evidence),
        source=lambda _, name: f"`{name}`",
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _most_frequent(matrix: MatrixReport) -> RunReport:
    found = matrix.findings()
    if not found:
        raise UsageError(f"{matrix.directory} has no finding to report", "every cell that was run is healthy")
    return found[0].cells[0].run


def _stacks(cell: CellEvidence) -> list[tuple[str, str]]:
    """Where the ranks' main threads stood at the last look: each stack once, with the ranks that had it."""
    found: dict[str, list[int]] = {}
    for rank in cell.ranks:
        stack = _main_stack(rank)
        if stack:
            found.setdefault(stack, []).append(rank.rank)
    rarest = sorted(found.items(), key=lambda each: len(each[1]))[:ALIKE_SHOWN]
    return [(f"rank {cell.names(ranks)}", stack) for stack, ranks in rarest]


def _main_stack(rank: RankEvidence) -> str:
    """Innermost first; of an exception its traceback."""
    if rank.exception and rank.exception.get("traceback"):
        return str(rank.exception["traceback"])
    threads = rank.last_capture.stacks if rank.last_capture else []
    main = next((t for t in threads if t.get("thread_name") == "MainThread"), threads[0] if threads else {})
    frames = main.get("frames", [])
    lines = [f"{f['name']} ({f['filename']}:{f['line']})" for f in frames[:FRAMES_SHOWN]]
    return "\n".join([*lines, *(["..."] if len(frames) > FRAMES_SHOWN else [])])
