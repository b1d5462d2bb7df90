"""One HTML file that needs nothing else: no font, no request, one script of its own that its policy names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from nsadiag.analysis.rules.catalogue import classes
from nsadiag.evidence.phrases import TIME_PARTS, count, plain_path
from nsadiag.evidence.records import Verdict
from nsadiag.reports import facts, scaling, scatter, words
from nsadiag.reports.cleaners.page import Page, finalized, page, with_code
from nsadiag.reports.formats import editors, plot
from nsadiag.reports.grid import grid_of
from nsadiag.reports.model import CellReport, MatrixReport, Report, RunReport
from nsadiag.reports.pictures.rows import LETTERS, ROWS
from nsadiag.reports.sources import source_href
from nsadiag.version import __version__

AGENT_KEYS = (
    "outcome",
    "class",
    "summary",
    "guilty_ranks",
    "world_size",
    "where",
    "peers_at",
    "because",
    "fix",
    "next",
    "mechanism",
)
OF_A_RUN = ("page.html.jinja", "style.css", "_parts.html.jinja", "_pictures.html.jinja", "run.html.jinja")
PICTURED = 6  # failures of a matrix, the most frequent first
LEGEND = {
    "forward": "forward",
    "backward": "backward",
    "peers": "waiting for peers",
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
        view = view_of(report)
        return page(
            template_of("run.html.jinja").render(
                run=report,
                view=view,
                copies=_copies(replace(report, collected=view.cell or report.collected)),
                **links,
            )
        )
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


def _copies(run: RunReport) -> dict[str, str]:
    """Texts to paste elsewhere, by the words on their buttons; nothing of a healthy run."""
    if run.verdict is None or run.verdict.outcome == "healthy":
        return {}
    from nsadiag.reports.formats.issue import render_issue
    from nsadiag.reports.terminal.run import render_terminal

    found: dict[str, str] = {}
    for name, render in (
        ("verdict", render_terminal),
        ("as issue", render_issue),
        ("for an agent", _for_agent),
    ):
        try:
            # Plain text again: what is safe as Markdown is not so as HTML, and the template shall escape it.
            found[name] = "".join(render(run))
        except Exception:  # as with pictures: damaged evidence costs the button, and not the page
            continue
    return found


def _for_agent(run: RunReport) -> str:
    """Instructions, and the verdict as data, in some hundred words."""
    assert run.verdict
    verdict = run.verdict.to_json()
    kept = {name: verdict[name] for name in AGENT_KEYS if verdict.get(name)}
    kept["evidence"] = [item["claim"] for item in verdict["evidence"]]
    return (
        "A distributed PyTorch job failed, and nsadiag judged it. Repair the cause in the code named below, "
        f"without weakening what the job checks, and run it again: {facts.run_again(run) or 'as before'}\n"
        f"More of the evidence: nsadiag report {shlex.quote(str(run.directory.resolve()))} --json\n\n"
        f"{json.dumps(kept, indent=1)}\n"
    )


def _about(verdict: Verdict | None) -> str:
    """The class in a sentence; empty of a healthy run, and of what no rule names."""
    return "" if verdict is None or verdict.outcome == "healthy" else classes().get(verdict.cls, "")


def compile_run_page() -> None:
    """Compiles ahead of time what the page of a run is made of."""
    from nsadiag.reports.formats import issue, markdown
    from nsadiag.reports.pictures import colours, view  # noqa: F401 - the analysis comes with its pictures
    from nsadiag.reports.terminal import run  # noqa: F401

    for name in OF_A_RUN:
        template_of(name)
    for name in ("run.md.jinja", "_parts.md.jinja", issue.TEMPLATE):
        markdown.template_of(name)
    classes()  # read from the rules' own files
    colours.coloured(["pass"])  # Pygments compiles its expressions at first use


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
    environment.filters.update(
        duration=words.duration, plain=plain_path, mebibytes=words.mebibytes, moment=words.moment
    )
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
        part_words=TIME_PARTS,
        editor_link=editors.link_to,
        about_of=_about,
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
