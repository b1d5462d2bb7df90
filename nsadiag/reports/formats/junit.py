"""JUnit's XML, which CI systems read: a test case a cell, and one a claim."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from nsadiag.reports.facts import headline
from nsadiag.reports.model import CellReport, Claim, MatrixReport, Report, RunReport
from nsadiag.reports.words import clean

# XML knows no control characters, no surrogates and no non-characters, not even escaped.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_NOT_RUN = {"skipped": "it needs GPUs that are not here", "pending": "not run"}


def render_junit(report: Report) -> str:
    """The document. A finding fails, no verdict is an error, what was not run, not settled or cut off is skipped."""
    root = ElementTree.Element("testsuites", name=_text(report.name))
    if isinstance(report, MatrixReport):
        _suite(root, report.name, [_cell_case(report, cell) for cell in report.cells])
        if report.claims:
            _suite(root, f"{report.name}: claims", [_claim_case(report, claim) for claim in report.claims])
    else:
        _suite(root, report.name, [_case(report, "nsadiag", report.duration_s)])
    ElementTree.indent(root, " ")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(root: ElementTree.Element, name: str, cases: Sequence[ElementTree.Element]) -> None:
    def ended(tag: str) -> str:
        return str(sum(case.find(tag) is not None for case in cases))

    suite = ElementTree.SubElement(
        root, "testsuite", name=_text(name), tests=str(len(cases)), failures=ended("failure"),
        errors=ended("error"), skipped=ended("skipped"),
    )  # fmt: skip
    suite.extend(cases)


def _cell_case(matrix: MatrixReport, cell: CellReport) -> ElementTree.Element:
    if cell.state in ("pending", "running", "skipped") and cell.verdict is None:
        case = _named(cell.id, matrix.name, cell.wall_s)
        ElementTree.SubElement(case, "skipped", message=_NOT_RUN.get(cell.state, cell.state))
        return case
    return _case(cell.run, matrix.name, cell.wall_s)


def _case(run: RunReport, group: str, seconds: float | None) -> ElementTree.Element:
    case, verdict = _named(run.name, group, seconds), run.verdict
    if verdict is not None and verdict.outcome == "incomplete":
        ElementTree.SubElement(case, "skipped", message=_text(verdict.summary))
    elif verdict is None or verdict.outcome == "unknown":
        said = verdict.summary if verdict else "; ".join(["no verdict could be read", *run.gaps])
        ElementTree.SubElement(case, "error", message=_text(said))
    elif verdict.outcome != "healthy":
        failure = ElementTree.SubElement(
            case, "failure", type=_text(verdict.cls), message=_text(verdict.summary)
        )
        claims = [f"{item.claim} ({item.source})" for item in verdict.evidence]
        failure.text = _text(
            "\n".join([f"{verdict.outcome}: {headline(verdict)}", *claims, verdict.fix or ""]).strip()
        )
    return case


def _claim_case(matrix: MatrixReport, claim: Claim) -> ElementTree.Element:
    case = _named(f"{claim.text}: {claim.status}", f"{matrix.name}: claims", None)
    if claim.status in ("not tested", "not settled"):
        ElementTree.SubElement(case, "skipped", message=_text(claim.because))
    else:
        ElementTree.SubElement(case, "system-out").text = _text(claim.because)
    return case


def _named(name: str, group: str, seconds: float | None) -> ElementTree.Element:
    case = ElementTree.Element("testcase", name=_text(name), classname=_text(group))
    if seconds is not None:
        case.set("time", f"{seconds:.3f}")
    return case


def _text(text: str) -> str:
    return _NO_XML.sub("", clean(text))
