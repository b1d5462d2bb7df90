"""Markdown for people who read it raw and for GitHub, which renders it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from nsadiag.evidence.phrases import TIME_PARTS, count
from nsadiag.reports import facts, scaling, scatter, words
from nsadiag.reports.cleaners.markdown import Markdown, block, code, document, escape, link, table
from nsadiag.reports.grid import Grid, Slot, grid_of
from nsadiag.reports.model import CellReport, MatrixReport, Report, RunReport
from nsadiag.reports.sources import relative_href, source_href

PARTS_SHOWN = ("compute", "peers", "input", "saving")  # of a step, in the table of costs


def render_markdown(report: Report) -> Markdown:
    """The document, ending in a newline."""
    links = _links(report.directory)
    if isinstance(report, MatrixReport):
        template = _environment().get_template("matrix.md.jinja")
        return document(template.render(matrix=report, grid=grid_of(report), **links))
    return document(_environment().get_template("run.md.jinja").render(run=report, **links))


def template_of(name: str) -> Template:
    """One of `templates/`, with the filters and tables of every Markdown document."""
    return _environment().get_template(name)


def fact_table(run: RunReport) -> Markdown:
    rows = []
    for fact in facts.facts_of(run):
        source = Markdown("<br>{}").format(code(fact.code)) if fact.code else Markdown("")
        rows.append([escape(fact.label), escape(fact.text) + source])
    return table([Markdown(""), Markdown("")], rows) if rows else Markdown("")


def call_table(run: RunReport) -> Markdown:
    """The last calls of each rank, a letter a call; nothing of a run that nsadiag recorded."""
    if run.collected is None:
        return Markdown("")
    from nsadiag.analysis.case import Case  # the analysis comes with the picture
    from nsadiag.reports.pictures.calls import call_grid

    grid = call_grid(Case(run.collected), run.verdict)
    if grid is None:
        return Markdown("")
    numbers = f"#{grid.numbers[0]} to #{grid.numbers[-1]} of {grid.group}" if grid.numbers else ""
    header = _header("rank", *([numbers] if numbers else []), "what is known")
    rows = [
        [
            escape(f"{row.name} ({row.role})" if row.role else row.name),
            *([code(row.letters)] if numbers else []),
            escape(row.says),
        ]
        for row in grid.rows
    ]
    legend = "; ".join(f"{letter} {words}" for letter, words in grid.legend.items())
    more = f"; and {count(grid.left_out, 'more row')}" if grid.left_out else ""
    return Markdown("{}\n\n{}{}").format(table(header, rows), escape(legend), escape(more))


def grid_table(grid: Grid) -> Markdown:
    header = [escape(name) for name in (*grid.row_axes, *grid.columns)]
    rows = [[*map(escape, row.labels), *map(_slot, row.slots)] for row in grid.rows]
    return table(header, rows)


def _slot(slot: Slot) -> Markdown:
    return Markdown(", ").join(_mark(words.mark_of(cell.mark)) for cell in slot)


def _mark(mark: words.Mark) -> Markdown:
    return Markdown("{} {}").format(mark.letter, mark.word)


def claim_table(matrix: MatrixReport) -> Markdown:
    rows = []
    for claim in matrix.claims:
        source = Markdown(" ({})").format(claim.source) if claim.source else Markdown("")
        answer = _mark(words.status_mark(claim.status))
        rows.append([answer, escape(claim.text) + source, escape(claim.because)])
    return table(_header("answer", "claim", "why"), rows)


def parity_table(matrix: MatrixReport) -> Markdown:
    rows = [
        [
            code(row.cell), code(row.control), escape(row.judgement), _measure(words.relative(row.loss_difference)),
            code(row.worst), escape(row.says),
        ]
        for row in matrix.parity
    ]  # fmt: skip
    return table(
        _header("cell", "held against", "answer", "loss off by", "worst parameter", "in words"), rows
    )


def _header(*names: str) -> list[Markdown]:
    return list(map(escape, names))


def cost_table(matrix: MatrixReport) -> Markdown:
    header = _header(
        "cell", "verdict", "steps", "step", *(TIME_PARTS[part] for part in PARTS_SHOWN), "peak memory", "wall"
    )
    return table(header, [_cost_row(cell) for cell in matrix.failing_first()], right=4 + len(PARTS_SHOWN))


def _cost_row(cell: CellReport) -> list[Markdown]:
    costs = cell.costs
    measured = (
        words.NOT_KNOWN if costs.steps is None else str(costs.steps),
        words.duration(costs.step_s_median),
        *(words.duration(costs.parts.get(part)) for part in PARTS_SHOWN),
        words.mebibytes(costs.peak_rss_mib),
        words.duration(cell.wall_s),
    )
    return [code(cell.id), _slot((cell,)), *map(_measure, measured)]


def _measure(text: str) -> Markdown:
    """A number with its unit; what is not known is a dash, which opens no list inside a table."""
    return Markdown("-") if text == words.NOT_KNOWN else escape(text)


def provenance_table(run: RunReport, machine: Mapping[str, str]) -> Markdown:
    rows = [[escape(name), code(value)] for name, value in (*run.versions.items(), *machine.items())]
    took = None if run.duration_s is None else words.duration(run.duration_s)
    started = words.moment(run.started_at) if run.started_at else None
    rows += [
        [escape(name), escape(value)]
        for name, value in (("host", run.host), ("started", started), ("took", took))
        if value
    ]
    return table([Markdown(""), Markdown("")], rows) if rows else Markdown("")


def _links(report_directory: Path) -> dict[str, Any]:
    """The links, which depend on the directory of the document."""

    def source(run: RunReport, text: str) -> Markdown:
        return link(code(text), source_href(report_directory, run.directory, text))

    return {
        "source": source,
        "href": lambda path: relative_href(report_directory, path),
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nsadiag.reports"),
        undefined=StrictUndefined,
        autoescape=True,  # what macros return is markup
        finalize=Markdown.escape,  # the escaping is Markdown's
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(code=code, block=block, duration=words.duration)
    environment.globals.update(
        fact_table=fact_table,
        call_table=call_table,
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
        earlier_text=facts.earlier_text,
        judge_again=facts.judge_again,
    )
    return environment
