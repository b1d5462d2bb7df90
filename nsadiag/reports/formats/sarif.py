"""SARIF 2.1.0: findings with their lines, for code scanning of GitHub, GitLab and editors."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nsadiag.analysis.rules import catalogue
from nsadiag.evidence.records import Place, Verdict, Where
from nsadiag.printing import one_line
from nsadiag.reports.cleaners.data import Json, json_text
from nsadiag.reports.formats.github import LEVELS, findings_of, within_repository
from nsadiag.reports.model import MatrixReport, Report
from nsadiag.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render_sarif(report: Report) -> Json:
    """The document; without results for what is healthy."""
    found = [*findings_of(report)]
    rehearsal = None if isinstance(report, MatrixReport) else report.rehearsal
    calls = [(call.place, f"rank {call.rank}: {call.words}") for call in rehearsal.calls] if rehearsal else []
    driver = {"name": "nsadiag", "version": __version__, "rules": _rules({v.cls for v in found})}
    results = [_result(verdict, calls) for verdict in found]
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rules(classes: set[str]) -> list[dict[str, Any]]:
    """The classes of the results, and what each says happened."""
    means = catalogue.classes()
    return [{"id": cls, "shortDescription": {"text": means.get(cls, cls)}} for cls in sorted(classes)]


def _result(verdict: Verdict, calls: list[tuple[str, str]]) -> dict[str, Any]:
    said = one_line(verdict.summary + (f" {verdict.fix}" if verdict.fix else ""))
    because = verdict.because
    cause = [_place(because.file, because.line, f"because: {because.words}")] if because else []
    related = [
        *cause,
        _location(verdict.peers_at, "where the others are"),
        *(_called(*call) for call in calls),
    ]
    at = _location(verdict.where)
    return {
        "ruleId": verdict.cls,
        "level": LEVELS.get(verdict.outcome, "error"),
        "message": {"text": said},
        "locations": [at] if at else [],
        "relatedLocations": [{**each, "id": n} for n, each in enumerate(filter(None, related))],
        "partialFingerprints": {"nsadiagSignature/v1": verdict.signature},
        "properties": {
            "outcome": verdict.outcome,
            "guilty_ranks": list(verdict.guilty_ranks),
            "world_size": verdict.world_size,
            "certainty": verdict.certainty,
            "confidence": verdict.confidence,
        },
    }


def _called(place: str, said: str) -> dict[str, Any] | None:
    """The location of a rehearsed call: `file:line:function`."""
    file, _, rest = place.rpartition(".py:")
    line = rest.partition(":")[0]
    return _place(f"{file}.py", int(line), said) if file and line.isdigit() else None


def _location(where: Place | Where | None, said: str = "") -> dict[str, Any] | None:
    if where is None or not where.file:
        return None
    return _place(where.file, where.line or 1, said)


def _place(file: str, line: int, said: str) -> dict[str, Any]:
    inside = within_repository(file)
    uri = quote(inside) if inside != file else f"file://{quote(file)}"
    region = {"startLine": max(line, 1)}
    found: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
    return {**found, "message": {"text": said}} if said else found
