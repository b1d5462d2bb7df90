"""A verdict on a terminal: what happened, who, where, why, what to do; it fits on one screen."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.text import Text

from nsadiag.evidence.records import Verdict
from nsadiag.reports.facts import Fact, facts_of, headline
from nsadiag.reports.model import MatrixReport, Report, RunReport
from nsadiag.reports.terminal.hanging import Hanging, labelled, paragraph
from nsadiag.reports.words import ascii_only, clean, duration, mark_of, one_line

# One screen has room for the strongest few; the rest is in the report.
EVIDENCE_SHOWN = 5
REJECTED_SHOWN = 3


def render_terminal(report: Report) -> str:
    """The report as plain text, as wide as COLUMNS says (80 otherwise)."""
    buffer = io.StringIO()
    print_report(report, Console(file=buffer, no_color=True, force_terminal=False, force_jupyter=False))
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def print_report(report: Report, console: Console, *, everything: bool = False) -> None:
    """Print to the given console, within its width, colours and encoding; `everything` is for all evidence of a run."""
    if isinstance(report, MatrixReport):
        from nsadiag.reports.terminal.matrix import matrix_lines

        lines = list(matrix_lines(report, console))
    else:
        # Elsewhere a line is one to grep, however long.
        width = console.width if console.is_terminal else None
        lines = list(run_lines(report, everything=everything, width=width))
    if not console.options.ascii_only:
        _print(console, lines)
        return
    with console.capture() as capture:
        _print(console, lines)
    console.file.write(ascii_only(capture.get()))


def _print(console: Console, lines: Iterable[RenderableType]) -> None:
    for line in lines:
        whole = isinstance(line, Text) and line.no_wrap is True
        unbroken = isinstance(line, Hanging)
        end = "" if unbroken else "\n"
        console.print(
            line, soft_wrap=whole, crop=not unbroken, end=end, highlight=False, markup=False, emoji=False
        )


def run_lines(
    run: RunReport, *, everything: bool = False, width: int | None = None
) -> Iterable[RenderableType]:
    """The verdict from top to bottom, ready to print; `width`: of a terminal, which would break longer lines anywhere."""
    yield from _title(run, width)
    verdict = run.verdict
    if verdict:
        yield paragraph(Text(clean(verdict.summary), style="bold"))
    yield Text()
    yield from labelled(list(_fact_rows(facts_of(run))))
    if verdict:
        yield from _evidence(verdict, None if everything else EVIDENCE_SHOWN)
        yield from _section("Ruled out", _rejected(verdict, None if everything else REJECTED_SHOWN))
    yield from _section("Gaps", [Text(clean(gap)) for gap in run.unseen])
    yield from _advice(run, width)


def _title(run: RunReport, width: int | None) -> Iterable[Text]:
    mark = mark_of(run.state)
    title = Text(f" {mark.word.upper()} ", style=f"bold reverse {mark.style}")
    said = headline(run.verdict) if run.verdict else "no verdict could be read"
    title.append(f" {said}", style=f"not reverse bold {mark.style}")
    took = "" if run.duration_s is None else f" · {duration(run.duration_s)}"
    name = Text(f"{clean(run.name)}{took}", style="not reverse not bold dim default")
    title.no_wrap = name.no_wrap = True  # a line to grep
    whole = Text.assemble(title, (" · ", name.style), name, no_wrap=True)
    if width is None or whole.cell_len <= width:
        yield whole
    else:
        yield title
        yield Text.assemble("  ", name, no_wrap=True)


def _fact_rows(facts: list[Fact]) -> Iterable[tuple[Text, Text]]:
    for fact in facts:
        style = "bold" if fact.label in ("guilty", "at") else ""
        yield Text(fact.label, style="dim"), Text(clean(fact.text), style=style)
        if fact.code:
            yield Text(), Text(f"> {clean(fact.code).strip()}", style="cyan")


def _evidence(verdict: Verdict, most: int | None) -> Iterable[RenderableType]:
    rows = []
    for item in verdict.evidence[:most]:
        rows.append(Text.assemble(clean(item.claim), " ", (clean(item.source), "dim")))
    more = len(verdict.evidence) - len(rows)
    yield from _section("Evidence", rows)
    if more > 0:
        yield paragraph(Text(f"and {more} more: nsadiag report -v", style="dim"), indent=4)


def _rejected(verdict: Verdict, most: int | None) -> list[Text]:
    rows = []
    for item in verdict.rejected[:most]:
        rows.append(Text.assemble((item.cls, "bold"), f": {clean(item.because)}"))
    return rows


def _section(title: str, rows: Iterable[Text]) -> Iterable[RenderableType]:
    """A heading and its items; nothing at all without items."""
    items = list(rows)
    if not items:
        return
    yield Text()
    yield paragraph(Text(title, style="bold"))
    yield from (Hanging(Text("· ", style="dim"), item) for item in items)


def _advice(run: RunReport, width: int | None) -> Iterable[RenderableType]:
    """The advice, at the bottom, where a reader looks when a command ends."""
    verdict = run.verdict
    yield Text()
    if verdict and verdict.fix:
        yield Hanging(Text(f"{'fix':<8}", style="dim"), Text(clean(verdict.fix), style="green"))
    if verdict and verdict.next:
        yield from _unbroken("next", one_line(verdict.next), width)
    report = run.directory / "report.html"
    if report.exists():
        yield from _unbroken("report", str(report), width)
    else:
        yield from _unbroken("files", str(run.directory), width)


def _unbroken(label: str, text: str, width: int | None) -> Iterable[Text]:
    """A command or path that can be copied, beside its label or beneath it: we put no line end into it."""
    line = Text.assemble("  ", (f"{label:<8}", "dim"), text, no_wrap=True)
    if width is None or line.cell_len <= width or len(text) + 4 > width:
        yield line
    else:
        yield Text.assemble("  ", (label, "dim"), no_wrap=True)
        yield Text(f"    {text}", no_wrap=True)
