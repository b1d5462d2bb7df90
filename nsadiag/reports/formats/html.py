"""One HTML file that needs nothing else: no font, no request, one script of its own that its policy names."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from nsadiag.evidence.phrases import count
from nsadiag.reports import facts, scaling, scatter, words
from nsadiag.reports.cleaners.page import Page, finalized, page, with_code
from nsadiag.reports.formats import plot
from nsadiag.reports.grid import grid_of
from nsadiag.reports.model import CellReport, MatrixReport, Report
from nsadiag.reports.pictures.rows import LETTERS, ROWS
from nsadiag.reports.sources import source_href
from nsadiag.version import __version__

PICTURED = 6  # failures of a matrix, the most frequent first
LEGEND = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "data": "waits for a batch",
    "file": "checkpoint",
    "call": "collective, send or receive",
    "phase": "a phase that the code names",
}


def render_html(report: Report) -> Page:
    """The page. Every value in it is escaped by the template engine; none is trusted."""
    from nsadiag.reports.pictures.view import view_of  # the analysis comes with its pictures

    links = links_of(report.directory)
    if not isinstance(report, MatrixReport):
        return page(template_of("run.html.jinja").render(run=report, view=view_of(report), **links))
    steps = [cell.costs.step_s_median or 0.0 for cell in report.cells]
    text = template_of("matrix.html.jinja").render(
        matrix=report,
        grid=grid_of(report),
        panels=plot.panels_of(report),
        longest_s=max(steps, default=0.0),
        views={found.cells[0].id: view_of(found.cells[0].run) for found in report.findings()[:PICTURED]},
        **links,
    )
    return page(text)


def template_of(name: str) -> Template:
    """A template of this environment."""
    return _environment().get_template(name)


def cell_anchor(cell: CellReport) -> str:
    """The id of a cell's section: its own id, with what a fragment may not hold replaced."""
    return "cell-" + re.sub(r"[^\w.=,-]", "_", cell.id)


def links_of(report_directory: Path) -> dict[str, Any]:
    """The links, which depend on the directory of the page."""
    return {
        "source_href": lambda run, source: source_href(report_directory, run.directory, source),
    }


def _shorter(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nsadiag.reports"),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(duration=words.duration, mebibytes=words.mebibytes, moment=words.moment)
    environment.filters.update(
        anchor=cell_anchor, ticked=with_code, shorter=_shorter, base=lambda path: path.rpartition("/")[2]
    )
    script = environment.loader.get_source(environment, "page.js")[0] if environment.loader else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        rows_of=ROWS,
        letters_of=LETTERS,
        legend_of=LEGEND,
        place_text=facts.place_text,
        version=__version__,
        mark_of=words.mark_of,
        tally=words.tally,
        answers=words.answers,
        spent=words.spent,
        relative=words.relative,
        status_mark=words.status_mark,
        in_order=words.in_order,
        count=count,
        facts_of=facts.facts_of,
        ranks_to_show=facts.ranks_to_show,
        headline=facts.headline,
        run_again=facts.run_again,
        earlier_text=facts.earlier_text,
        judge_again=facts.judge_again,
        sureness=words.sureness,
        widths_of=plot.widths_of,
        plot=plot,
        growth_rows=scaling.growth_rows,
        scatter_of=scatter.scatter_of,
    )
    return environment
