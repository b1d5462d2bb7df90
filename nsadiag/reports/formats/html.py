"""One HTML file that needs nothing else: no script, no font, no request."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from nsadiag.reports import facts, scaling, scatter, words
from nsadiag.reports.formats import plot
from nsadiag.reports.grid import grid_of
from nsadiag.reports.model import CellReport, MatrixReport, Report
from nsadiag.reports.sources import source_href
from nsadiag.version import __version__


def render_html(report: Report) -> str:
    """The page. Every value in it is escaped by the template engine; none is trusted."""
    links = _links(report.directory)
    if not isinstance(report, MatrixReport):
        return _environment().get_template("run.html.jinja").render(run=report, **links)
    steps = [cell.costs.step_s_median or 0.0 for cell in report.cells]
    return (
        _environment()
        .get_template("matrix.html.jinja")
        .render(
            matrix=report,
            grid=grid_of(report),
            panels=plot.panels_of(report),
            longest_s=max(steps, default=0.0),
            **links,
        )
    )


def cell_anchor(cell: CellReport) -> str:
    """The id of a cell's section: its own id, with what a fragment may not hold replaced."""
    return "cell-" + re.sub(r"[^\w.=,-]", "_", cell.id)


def _links(report_directory: Path) -> dict[str, Any]:
    """The links, which depend on the directory of the page."""
    return {
        "source_href": lambda run, source: source_href(report_directory, run.directory, source),
        "judge_again": lambda run: facts.judge_again(run, report_directory),
    }


def _cleaned(value: Any) -> Any:
    """Control characters are no HTML. A subclass of str is markup that the templates made themselves."""
    return words.clean(value) if type(value) is str else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nsadiag.reports"),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_cleaned,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(duration=words.duration, mebibytes=words.mebibytes, moment=words.moment)
    environment.filters.update(anchor=cell_anchor)
    environment.globals.update(
        version=__version__,
        mark_of=words.mark_of,
        tally=words.tally,
        answers=words.answers,
        spent=words.spent,
        relative=words.relative,
        status_mark=words.status_mark,
        in_order=words.in_order,
        count=words.count,
        facts_of=facts.facts_of,
        ranks_to_show=facts.ranks_to_show,
        headline=facts.headline,
        run_again=facts.run_again,
        widths_of=plot.widths_of,
        plot=plot,
        growth_words=scaling.growth_words,
        scatter_of=scatter.scatter_of,
    )
    return environment
