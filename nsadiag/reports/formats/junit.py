"""JUnit's XML, which CI systems read: a test case a cell, and one a claim."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from nsadiag.reports.cleaners.data import Xml, element, xml_text
from nsadiag.reports.facts import headline
from nsadiag.reports.model import CellReport, Claim, MatrixReport, Report, RunReport

_NOT_RUN = {"skipped": "it needs GPUs that are not here", "pending": "not run"}


def render_junit(report: Report) -> Xml:
    """The document. A finding fails, no verdict is an error, what was not run, not settled or cut off is skipped."""
    root = element("testsuites", {"name": report.name})
    if isinstance(report, MatrixReport):
        _suite(root, report.name, [_cell_case(report, cell) for cell in report.cells])
        if report.claims:
            _suite(root, f"{report.name}: claims", [_claim_case(report, claim) for claim in report.claims])
    else:
        _suite(root, report.name, [_case(report, "nsadiag", report.duration_s)])
    return xml_text(root)


def _suite(root: ElementTree.Element, name: str, cases: Sequence[ElementTree.Element]) -> None:
    def ended(tag: str) -> str:
        return str(sum(case.find(tag) is not None for case in cases))

    suite = element(
        "testsuite",
        {
            "name": name, "tests": str(len(cases)), "failures": ended("failure"), "errors": ended("error"),
            "skipped": ended("skipped"),
        },
        root,
    )  # fmt: skip
    suite.extend(cases)


def _cell_case(matrix: MatrixReport, cell: CellReport) -> ElementTree.Element:
    if cell.state in ("pending", "running", "skipped") and cell.verdict is None:
        case = _named(cell.id, matrix.name, cell.wall_s)
        element("skipped", {"message": _NOT_RUN.get(cell.state, cell.state)}, case)
        return case
    return _case(cell.run, matrix.name, cell.wall_s)


def _case(run: RunReport, group: str, seconds: float | None) -> ElementTree.Element:
    case, verdict = _named(run.name, group, seconds), run.verdict
    if verdict is not None and verdict.outcome == "incomplete":
        element("skipped", {"message": verdict.summary}, case)
    elif verdict is None or verdict.outcome == "unknown":
        said = verdict.summary if verdict else "; ".join([run.without_verdict, *run.gaps])
        element("error", {"message": said}, case)
    elif verdict.outcome != "healthy":
        claims = [f"{item.claim} ({item.source})" for item in verdict.evidence]
        said = "\n".join([f"{verdict.outcome}: {headline(verdict)}", *claims, verdict.fix or ""]).strip()
        element("failure", {"type": verdict.cls, "message": verdict.summary}, case, said)
    return case


def _claim_case(matrix: MatrixReport, claim: Claim) -> ElementTree.Element:
    case = _named(f"{claim.text}: {claim.status}", f"{matrix.name}: claims", None)
    if claim.status in ("not tested", "not settled"):
        element("skipped", {"message": claim.because}, case)
    else:
        element("system-out", {}, case, claim.because)
    return case


def _named(name: str, group: str, seconds: float | None) -> ElementTree.Element:
    took = {} if seconds is None else {"time": f"{seconds:.3f}"}
    return element("testcase", {"name": name, "classname": group, **took})
