"""`nsadiag analyze`: a verdict on what is already on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from nsadiag.analysis.external.inputs.listing import STDIN, check_paths
from nsadiag.analysis.load import is_run_directory
from nsadiag.analysis.verdict import judge_directory
from nsadiag.commands import output
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import COLLECTED, SCHEMA_VERSION, write_json
from nsadiag.reports.load import load_collected, load_report
from nsadiag.reports.model import MatrixReport, Report, RunReport


def is_matrix(path: Path) -> bool:
    """Whether `nsadiag matrix` wrote the directory."""
    return (path / "matrix.json").exists()


def check_one_job(paths: Sequence[Path]) -> None:
    """Raises UsageError unless there is something to read, and it is no matrix."""
    for path in paths:
        if is_matrix(path):
            raise UsageError(f"{path} is a matrix", "give the directory of one of its cells")
    check_paths(paths)


def judged(paths: Sequence[Path], *, out: Path | None, force: bool) -> Report:
    """The report on the paths. Of a run or matrix the verdict is written anew there, of other tools' files to `out`.

    Raises UsageError.
    """
    path = paths[0]
    if len(paths) == 1 and (is_matrix(path) or is_run_directory(path)):
        if out is not None:
            raise UsageError(f"--out with {path}, which keeps its own verdict", "leave --out away")
        return _judged_again(path)
    check_one_job(paths)
    report = load_collected(*paths)
    return report if out is None else _written(report, out, force=force)


def outcome_of(report: Report) -> str:
    """That of a run; a matrix is healthy, or has findings."""
    if isinstance(report, MatrixReport):
        ran = [cell.verdict for cell in report.cells if cell.state == "done"]
        return "healthy" if all(v is not None and v.outcome == "healthy" for v in ran) else "finding"
    return report.state


def _judged_again(path: Path) -> Report:
    if is_matrix(path):
        from nsadiag.commands.matrix.rejudge import rejudge

        rejudge(path)
    else:
        from nsadiag.reports.formats.registry import write_reports

        judge_directory(path)
        write_reports(path)
    return load_report(path)


def _written(report: RunReport, out: Path, *, force: bool) -> RunReport:
    """Write verdict and reports; the evidence stays where it is."""
    from nsadiag.reports.formats.registry import write_rendered

    run = output.prepare(out, report.name, force=force)
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": COLLECTED,
        "name": report.name,
        "paths": [str(path if path == STDIN else path.absolute()) for path in report.given],
        "judged_at": output.now(),
        "world_size": report.world_size,
        "versions": dict(report.versions),
        "environment": dict(report.environment),
    }
    write_json(run.run, document)
    if report.verdict is not None:
        write_json(run.verdict, report.verdict.to_json())
    write_rendered(report, run.path)
    return dataclasses.replace(report, written=run.path)
