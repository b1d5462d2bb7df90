"""Markdown for people who read it raw and for GitHub, which renders it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from nsadiag.evidence.phrases import count
from nsadiag.reports import facts, scaling, scatter, words
from nsadiag.reports.grid import Grid, Slot, grid_of
from nsadiag.reports.model import CellReport, MatrixReport, Report, RunReport
from nsadiag.reports.sources import relative_href, source_href

_ANYWHERE = re.compile(r"[\\`*\[\]<>|$~]|&(?=[#\w]+;)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_AT_THE_START = re.compile(r"^(?:[-+#=](?=\s|#|-|=|$)|\d+(?=[.)](?:\s|$)))")


def render_markdown(report: Report) -> str:
    """The document, ending in a newline."""
    links = _links(report.directory)
    if isinstance(report, MatrixReport):
        template = _environment().get_template("matrix.md.jinja")
        text = template.render(matrix=report, grid=grid_of(report), **links)
    else:
        text = _environment().get_template("run.md.jinja").render(run=report, **links)
    # Optional parts leave blank lines behind; nothing in the document means more than one of them.
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def escape(text: object) -> str:
    """The text in one line; what Markdown, GitHub's tables, HTML or maths would take as theirs is escaped.

    An underscore inside a word is left alone, as GitHub leaves it: class names stay readable raw.
    """
    line = _ANYWHERE.sub(lambda match: "\\" + match[0], words.one_line(text))
    start = _AT_THE_START.match(line)
    if not start:
        return line
    end = start.end()
    # "12." needs its dot escaped, "- " its first character.
    return f"{line[:end]}\\{line[end:]}" if line[:end].isdigit() else f"\\{line}"


def code(text: object) -> str:
    """A code span; its fence is longer than any run of backticks in the text."""
    line = words.one_line(text)
    fence = "`" * (1 + _longest_run(line))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}" if line else ""


def cell_code(text: object) -> str:
    """A code span inside a table, where a pipe would end the cell."""
    return code(text).replace("|", "\\|")


def block(text: object, language: str = "text") -> str:
    """A fenced block that the text cannot close."""
    body = words.clean(text).strip("\n")
    fence = "`" * max(3, 1 + _longest_run(body))
    return f"{fence}{language}\n{body}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: int = 0) -> str:
    """A table padded so that it is one in plain text too; the last `right` columns are numbers."""
    widths = [max(3, *(len(row[i]) for row in (header, *rows))) for i in range(len(header))]
    first_right = len(header) - right
    rule = [f"{'-' * (w - 1)}:" if i >= first_right else "-" * w for i, w in enumerate(widths)]

    def line(row: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(
                text.rjust(w) if i >= first_right else text.ljust(w)
                for i, (text, w) in enumerate(zip(row, widths, strict=True))
            )
            + " |"
        )

    return "\n".join(line(row) for row in (header, rule, *rows))


def template_of(name: str) -> Template:
    """One of `templates/`, with the filters and tables of every Markdown document."""
    return _environment().get_template(name)


def fact_table(run: RunReport) -> str:
    rows = []
    for fact in facts.facts_of(run):
        source = f"<br>{cell_code(fact.code)}" if fact.code else ""
        rows.append([fact.label, escape(fact.text) + source])
    return table(["", ""], rows) if rows else ""


def grid_table(grid: Grid) -> str:
    header = [escape(name) for name in (*grid.row_axes, *grid.columns)]
    rows = [[*map(escape, row.labels), *map(_slot, row.slots)] for row in grid.rows]
    return table(header, rows)


def _slot(slot: Slot) -> str:
    marks = [words.mark_of(cell.mark) for cell in slot]
    return ", ".join(f"{mark.letter} {escape(mark.word)}" for mark in marks)


def claim_table(matrix: MatrixReport) -> str:
    rows = []
    for claim in matrix.claims:
        mark = words.status_mark(claim.status)
        source = f" ({escape(claim.source)})" if claim.source else ""
        rows.append([f"{mark.letter} {mark.word}", escape(claim.text) + source, escape(claim.because)])
    return table(["answer", "claim", "why"], rows)


def parity_table(matrix: MatrixReport) -> str:
    rows = [
        [
            cell_code(row.cell), cell_code(row.control), escape(row.judgement), words.relative(row.loss_difference),
            cell_code(row.worst), escape(row.says),
        ]
        for row in matrix.parity
    ]  # fmt: skip
    return table(["cell", "held against", "answer", "loss off by", "worst parameter", "in words"], rows)


def cost_table(matrix: MatrixReport) -> str:
    header = ["cell", "verdict", "start", "steps", "step", "forward", "backward", "peak memory", "wall"]
    return table(header, [_cost_row(cell) for cell in matrix.failing_first()], right=6)


def _cost_row(cell: CellReport) -> list[str]:
    costs = cell.costs
    return [
        cell_code(cell.id),
        _slot((cell,)),
        escape(cell.launch or ""),
        words.NOT_KNOWN if costs.steps is None else str(costs.steps),
        words.duration(costs.step_s_median),
        words.duration(costs.forward_s_median),
        words.duration(costs.backward_s_median),
        words.mebibytes(costs.peak_rss_mib),
        words.duration(cell.wall_s),
    ]


def provenance_table(run: RunReport, machine: Mapping[str, str]) -> str:
    rows = [[escape(name), cell_code(value)] for name, value in (*run.versions.items(), *machine.items())]
    took = None if run.duration_s is None else words.duration(run.duration_s)
    started = words.moment(run.started_at) if run.started_at else None
    for name, value in (("host", run.host), ("started", started), ("took", took)):
        if value:
            rows.append([name, escape(value)])
    return table(["", ""], rows) if rows else ""


def _links(report_directory: Path) -> dict[str, Any]:
    """The links, which depend on the directory of the document."""

    def source(run: RunReport, text: str) -> str:
        href = source_href(report_directory, run.directory, text)
        return f"[{code(text)}]({href})" if href else code(text)

    return {
        "source": source,
        "href": lambda path: relative_href(report_directory, path),
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nsadiag.reports"),
        undefined=StrictUndefined,
        autoescape=False,  # Markdown, not HTML: every value goes through one of the filters below
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(md=escape, code=code, block=block, duration=words.duration)
    environment.globals.update(
        fact_table=fact_table,
        grid_table=grid_table,
        cost_table=cost_table,
        claim_table=claim_table,
        parity_table=parity_table,
        answers=words.answers,
        spent=words.spent,
        provenance_table=provenance_table,
        growth_words=scaling.growth_words,
        text_plot=scatter.text_plot,
        mark_of=words.mark_of,
        tally=words.tally,
        count=count,
        headline=facts.headline,
        run_again=facts.run_again,
        judge_again=facts.judge_again,
    )
    return environment
