"""A bug report to paste into an issue tracker: what happened, where each rank stood, how to see it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from nsadiag.errors import UsageError
from nsadiag.evidence.secrets.masking import mask_command, mask_text
from nsadiag.evidence.secrets.published import MASK, mask_likely
from nsadiag.evidence.user_code import is_ours
from nsadiag.reports.cleaners.markdown import Markdown, code, document
from nsadiag.reports.formats.markdown import template_of
from nsadiag.reports.load import cell_of
from nsadiag.reports.model import MatrixReport, Report, RunReport
from nsadiag.reports.pictures.tracebacks import without_ours

if TYPE_CHECKING:
    from nsadiag.analysis.records import CellEvidence, RankEvidence

TEMPLATE = "issue.md.jinja"
FRAMES_SHOWN = 25
ALIKE_SHOWN = 8
RANKS_SHOWN, LINES_SHOWN, LONGEST_LINE = 64, 3, 400  # of the logs of each rank
T = TypeVar("T")


def render_issue(report: Report) -> Markdown:
    """Markdown without a link to anything on this machine. Of a matrix: its most frequent finding. Raises UsageError."""
    found, cells = (
        (_most_frequent(report), report.cells) if isinstance(report, MatrixReport) else (report, ())
    )
    cell = cell_of(found)
    stacks, words = _stacks(cell), _last_words(cell) if cell.collected else []
    run = _masked(dataclasses.replace(found, collected=None, command=tuple(mask_command(found.command))))
    text = template_of(TEMPLATE).render(
        run=run,
        cells=_masked(cells),
        stacks=_masked(stacks),
        words=_masked(words),
        source=lambda _, name: code(name),
    )
    return document(_remark(text) + text)


def _masked(value: T) -> T:
    """The value with each text in it masked: before any is Markdown, since a mask must not swallow what ends a code span."""
    return cast(T, _without_secrets(value))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return mask_likely(mask_text(value))
    if isinstance(value, Mapping):
        return {name: _assigned(name, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_secrets, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: _without_secrets(item) for name, item in fields.items()})
    return value


def _assigned(name: str, value: Any) -> Any:
    """The value of a variable, which its name may call a secret."""
    if not isinstance(value, str):
        return _without_secrets(value)
    return _without_secrets(f"{name}={value}").removeprefix(f"{name}=")


def _remark(text: str) -> str:
    """The note that a reader needs before pasting a text."""
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


def _last_words(cell: CellEvidence) -> list[tuple[str, str]]:
    """The last lines of each rank's log; of very many ranks those of the first."""
    found = []
    for rank in cell.ranks[:RANKS_SHOWN]:
        lines = [line[:LONGEST_LINE] for line in rank.stderr_tail.splitlines() if line.strip()]
        if lines:
            found.append((f"rank {rank.rank} ({rank.source})", "\n".join(lines[-LINES_SHOWN:])))
    return found


def _main_stack(rank: RankEvidence) -> str:
    """Innermost first; of an exception its traceback."""
    if rank.exception and rank.exception.traceback:
        return without_ours(rank.exception.traceback)
    seen = rank.last_capture.main_frames if rank.last_capture else ()
    frames = [f for f in seen if not is_ours(f.filename)]
    lines = [f"{f.name} ({f.filename}:{f.line})" for f in frames[:FRAMES_SHOWN]]
    return "\n".join([*lines, *(["..."] if len(frames) > FRAMES_SHOWN else [])])
