"""A verdict on a terminal: what happened, who, where, why, what to do; it fits on one screen."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from nsadiag.evidence.records import Verdict
from nsadiag.printing import one_line
from nsadiag.reports.cleaners.plain import Plain
from nsadiag.reports.facts import Fact, earlier_text, facts_of, headline
from nsadiag.reports.model import MatrixReport, Report, RunReport
from nsadiag.reports.terminal.hanging import Hanging, labelled, paragraph
from nsadiag.reports.terminal.screen import Screen, Sheet
from nsadiag.reports.terminal.text import Text
from nsadiag.reports.words import duration, mark_of

# One screen has room for the strongest few; the rest is in the report.
EVIDENCE_SHOWN = 5
REJECTED_SHOWN = 3
PATHS_SHOWN = 6


def render_terminal(report: Report) -> Plain:
    """The report as plain text, as wide as COLUMNS says (80 otherwise)."""
    sheet = Sheet()
    print_report(report, sheet)
    return sheet.text()


def print_report(report: Report, console: Screen, *, everything: bool = False) -> None:
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
    console.write(capture.get())


def _print(console: Screen, lines: Iterable[RenderableType]) -> None:
    for line in lines:
        whole = isinstance(line, Text) and line.no_wrap is True
        unbroken = isinstance(line, Hanging)
        end = "" if unbroken else "\n"
        console.print(line, soft_wrap=whole, crop=not unbroken, end=end)


def run_lines(
    run: RunReport, *, everything: bool = False, width: int | None = None
) -> Iterable[RenderableType]:
    """The verdict from top to bottom, ready to print; `width`: of a terminal, which would break longer lines anywhere."""
    yield from _title(run, width)
    verdict = run.verdict
    if verdict:
        yield paragraph(Text(verdict.summary, style="bold"))
    yield Text()
    yield from labelled(list(_fact_rows(facts_of(run))))
    if verdict:
        yield from _evidence(verdict, None if everything else EVIDENCE_SHOWN)
        yield from _section("Ruled out", _rejected(verdict, None if everything else REJECTED_SHOWN))
        yield from _section("Not decided: what fits, and what would tell", _hypotheses(verdict))
        yield from _section("Earlier attempts", _earlier(verdict))
    yield from _section("Gaps", [Text(gap) for gap in run.unseen])
    yield from _advice(run, width)


def _title(run: RunReport, width: int | None) -> Iterable[Text]:
    mark = mark_of(run.state)
    title = Text(f" {mark.word.upper()} ", style=f"bold reverse {mark.style}")
    said = headline(run.verdict) if run.verdict else run.without_verdict
    title.append(f" {said}", style=f"not reverse bold {mark.style}")
    took = "" if run.duration_s is None else f" · {duration(run.duration_s)}"
    name = Text(f"{run.name}{took}", style="not reverse not bold dim default")
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
        yield Text(fact.label, style="dim"), Text(fact.text, style=style)
        if fact.code:
            yield Text(), Text(f"> {fact.code.strip()}", style="cyan")


def _evidence(verdict: Verdict, most: int | None) -> Iterable[RenderableType]:
    rows = []
    for item in verdict.evidence[:most]:
        rows.append(Text.assemble(item.claim, " ", (item.source, "dim")))
    more = len(verdict.evidence) - len(rows)
    yield from _section("Evidence", rows)
    if more > 0:
        yield paragraph(Text(f"and {more} more: nsadiag report -v", style="dim"), indent=4)


def _rejected(verdict: Verdict, most: int | None) -> list[Text]:
    rows = []
    for item in verdict.rejected[:most]:
        rows.append(Text.assemble((item.cls, "bold"), f": {item.because}"))
    return rows


def _earlier(verdict: Verdict) -> list[Text]:
    return [Text(earlier_text(each, verdict.world_size)) for each in verdict.earlier]


def _hypotheses(verdict: Verdict) -> list[Text]:
    rows = []
    for item in verdict.hypotheses:
        rows.append(
            Text.assemble(
                (item.cls, "bold"), f": {item.because}. Collect {item.collect}:\n", (item.command, "green")
            )
        )
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
        yield Hanging(Text(f"{'fix':<8}", style="dim"), Text(verdict.fix, style="green"))
    if verdict and verdict.next:
        yield from _unbroken("next", one_line(verdict.next), width)
    report = (run.written or run.directory) / "report.html"
    if report.exists() and (run.written or not run.given):
        yield from _unbroken("report", str(report), width)
    else:
        shown = [str(path) for path in run.evidence[:PATHS_SHOWN]]
        more = len(run.evidence) - len(shown)
        yield from _unbroken("files", " ".join([*shown, *([f"and {more} more"] if more else [])]), width)
    if verdict and verdict.outcome != "healthy":
        yield from _unbroken("explain", f"nsadiag explain {verdict.mechanism or verdict.cls}", width)


def _unbroken(label: str, text: str, width: int | None) -> Iterable[Text]:
    """A command or path that can be copied, beside its label or beneath it: we put no line end into it."""
    line = Text.assemble("  ", (f"{label:<8}", "dim"), text, no_wrap=True)
    if width is None or line.cell_len <= width or len(text) + 4 > width:
        yield line
    else:
        yield Text.assemble("  ", (label, "dim"), no_wrap=True)
        yield Text(f"    {text}", no_wrap=True)
