"""A bug report to paste into an issue tracker: what happened, where each rank stood, how to see it again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsadiag.errors import UsageError
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.evidence.secrets.published import MASK, mask_likely
from nsadiag.evidence.user_code import is_ours
from nsadiag.reports.formats.markdown import template_of
from nsadiag.reports.model import MatrixReport, Report, RunReport
from nsadiag.reports.pictures.tracebacks import without_ours

if TYPE_CHECKING:
    from nsadiag.analysis.records import CellEvidence, RankEvidence

FRAMES_SHOWN = 25
ALIKE_SHOWN = 8


def render_issue(report: Report) -> str:
    """Markdown without a link to anything on this machine. Of a matrix: its most frequent finding. Raises UsageError."""
    run, cells = (_most_frequent(report), report.cells) if isinstance(report, MatrixReport) else (report, ())
    from nsadiag.analysis.load import load_cell  # the analysis comes with it

    evidence = load_cell(run.evidence)
    text = template_of("issue.md.jinja").render(
        run=run,
        cells=cells,
        stacks=_stacks(evidence),
        source=lambda _, name: f"`{name}`",
    )
    text = mask_likely(mask_text(re.sub(r"\n{3,}", "\n\n", text).strip()))
    return f"{_masked(text)}{text}\n"


def _masked(text: str) -> str:
    """The notes that a reader needs before pasting a text."""
    count = text.count(MASK)
    were = "1 value was" if count == 1 else f"{count} values were"
    return (
        f"_{were} masked as `{MASK}`, by name or by form: read it before you paste it._\n\n" if count else ""
    )


def _most_frequent(matrix: MatrixReport) -> RunReport:
    found = matrix.findings()
    if not found:
        raise UsageError(f"{matrix.directory} has no finding to report", "every cell that was run is healthy")
    return found[0].cells[0].run


def _stacks(cell: CellEvidence) -> list[tuple[str, str]]:
    """The main threads' stacks at the last capture: each stack once, with the ranks that had it."""
    found: dict[str, list[int]] = {}
    for rank in cell.ranks:
        stack = _main_stack(rank)
        if stack:
            found.setdefault(stack, []).append(rank.rank)
    rarest = sorted(found.items(), key=lambda each: len(each[1]))[:ALIKE_SHOWN]
    return [(f"rank {cell.names(ranks)}", stack) for stack, ranks in rarest]


def _main_stack(rank: RankEvidence) -> str:
    """Innermost first; of an exception its traceback."""
    if rank.exception and rank.exception.traceback:
        return without_ours(rank.exception.traceback)
    seen = rank.last_capture.main_frames if rank.last_capture else ()
    frames = [f for f in seen if not is_ours(f.filename)]
    lines = [f"{f.name} ({f.filename}:{f.line})" for f in frames[:FRAMES_SHOWN]]
    return "\n".join([*lines, *(["..."] if len(frames) > FRAMES_SHOWN else [])])
