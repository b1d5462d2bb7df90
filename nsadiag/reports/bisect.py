"""A bisection in words: for a terminal and as markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nsadiag.printing import clean
from nsadiag.reports.cleaners.markdown import Markdown, code, escape, paragraphs, table
from nsadiag.reports.words import duration

Document = Mapping[str, Any]
HOW = {"good": "healthy", "bad": "fails", "flaky": "fails at times", "other": "fails in another way"}


def summary(document: Document) -> str:
    """The answer in one sentence."""
    axis = document["axis"]
    match document["conclusion"]:
        case "threshold":
            return _threshold(document)
        case "slope":
            return _slope(document)
        case "everywhere":
            return f"It fails at both ends, in the same way: {axis} does not decide it between these values."
        case "undecided":
            return f"It fails at both ends, in different ways: there is no good end of {axis} to begin from."
        case "nowhere":
            return f"It fails at neither end of {axis}{_growth(document)}."
        case _:
            return "Not finished."


def _threshold(document: Document) -> str:
    axis, good, bad = document["axis"], document["last_good"], document["first_bad"]
    point = _named(document, bad)
    failed = _failed(point)
    what = f"{failed['outcome']} ({failed['class']})" if failed else document["failure"]
    rate = f" in {point['failures']} of {len(point['runs'])} runs" if point["state"] == "flaky" else ""
    subject = f", “{point['subject']}”," if point.get("subject") else ""
    between = document["between"]
    apart = f" ({', '.join(between)} between them fail in another way)" if between else ""
    return f"{axis} {good} is healthy, {axis} {bad}{subject} is {what}{rate}{apart}."


def _slope(document: Document) -> str:
    axis, slope = document["axis"], document["slope"]
    limit = f" of {duration(document['limit_s'])}" if document["limit_s"] else ""
    return (
        f"There is no threshold: a step costs more with every {axis}, about {axis}^{slope['exponent']:.1f}, and from "
        f"{axis} {document['first_bad']} on it is too much for the limit{limit}."
    )


def _growth(document: Document) -> str:
    slope = document["slope"]
    return f"; a step costs about {document['axis']}^{slope['exponent']:.1f}" if slope else ""


def _named(document: Document, label: str) -> Mapping[str, Any]:
    return next(point for point in document["points"] if point["label"] == label)


def _failed(point: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((run for run in reversed(point["runs"]) if run["outcome"] != "healthy"), None)


def boundary(document: Document) -> Mapping[str, Any] | None:
    """The run that shows the failure nearest to the boundary."""
    label = document["first_bad"]
    return _failed(_named(document, label)) if label else None


def _place(run: Mapping[str, Any]) -> str:
    """`train.py:41 in train`; empty where the run's verdict names no line."""
    where = run.get("where") or {}
    if not where.get("file"):
        return ""
    line = f":{where['line']}" if where.get("line") else ""
    return f"{where['file']}{line}" + (f" in {where['function']}" if where.get("function") else "")


def _code(run: Mapping[str, Any]) -> str:
    return str((run.get("where") or {}).get("code") or "").strip()


def rows(document: Document) -> Iterator[tuple[str, ...]]:
    """Point, how it went, how often it failed, what a step cost, where the first failing run lies."""
    for point in document["points"]:
        if not point["runs"]:
            continue  # what was written of them did not fit
        failed = _failed(point) or point["runs"][-1]
        kind = "" if failed["outcome"] == "healthy" else f": {failed['class']}"
        subject = f" {point['subject']}" if point.get("subject") else ""
        yield (
            f"{point['label']}{subject}",
            f"{HOW[point['state']]}{kind}",
            f"{point['failures']} of {len(point['runs'])}",
            duration(point.get("step_s")),
            failed["directory"],
        )


def lines(document: Document, directory: object) -> Iterator[str]:
    """For a terminal: the points, then the answer, nearest to the prompt."""
    found = [("point", "how it went", "failed", "a step", "run"), *rows(document)]
    widths = [max(len(clean(row[i])) for row in found) for i in range(4)]
    yield clean(document["name"]) + (f"  ({clean(document['fixed'])})" if document["fixed"] else "")
    for row in found:
        yield "  " + "  ".join([*(clean(row[i]).ljust(widths[i]) for i in range(4)), clean(row[4])]).rstrip()
    yield ""
    yield clean(document["summary"])
    run = boundary(document)
    if run and document["conclusion"] == "threshold":
        yield f"  {clean(run['summary'])}"
        if at := _place(run):
            yield f"  at: {clean(at)}"
        if code_ := _code(run):
            yield f"      > {clean(code_)}"
        if run["fix"]:
            yield f"  fix: {clean(run['fix'])}"
    yield f"report: {directory}/report.md"


def markdown(document: Document) -> Markdown:
    """The document, ending in a newline."""
    header = [escape(name) for name in (document["axis"], "how it went", "failed", "a step", "run")]
    body = [[*map(escape, row[:4]), code(row[4])] for row in rows(document)]
    parts = [Markdown("# {}").format(document["name"]), escape(document["summary"])]
    run = boundary(document)
    if run and document["conclusion"] == "threshold":
        parts.append(escape(run["summary"]))
        if at := _place(run):
            said = Markdown("At {}").format(code(at))
            parts.append(said + Markdown(": {}").format(code(line)) if (line := _code(run)) else said)
        if run["fix"]:
            parts.append(Markdown("**Fix:** {}").format(run["fix"]))
    if document["fixed"]:
        parts.append(Markdown("Fixed: {}.").format(document["fixed"]))
    parts.append(Markdown("{} of {} points were run.").format(len(body), document["points_in_all"]))
    parts.append(Markdown("Command: {}").format(code(" ".join(document["command"]))))
    return paragraphs([*parts, table(header, body)] if body else parts)
