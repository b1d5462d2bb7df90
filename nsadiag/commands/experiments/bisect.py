"""`nsadiag bisect`: the value of an axis, or the commit, from which on a job fails."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.commands import output
from nsadiag.commands.experiments.points import BisectRequest
from nsadiag.errors import EXIT_FINDING, EXIT_HEALTHY, EXIT_INTERRUPTED, MachineError, UsageError
from nsadiag.evidence.layout import (
    SCHEMA_VERSION,
    RunDir,
    read_json,
    replace_private,
    write_json,
    write_private,
)
from nsadiag.evidence.secrets.masking import hide, mask_command
from nsadiag.experiments.bisect import Bisection, Bisector, Conclusion, Point, Seen
from nsadiag.experiments.commits import Worktree, top_of, worktree
from nsadiag.experiments.trial import Slots, Trial, slots
from nsadiag.printing import note

Probe = Callable[[int], Seen]


@dataclass(frozen=True, kw_only=True)
class BisectResult:
    """The result of a bisection."""

    directory: Path
    document: dict[str, Any]
    exit_code: int


def shown(result: BisectResult, *, as_json: bool) -> str:
    """The text for stdout."""
    from nsadiag.reports.bisect import lines

    if as_json:
        return json.dumps(result.document, indent=1)
    return "\n".join(lines(result.document, result.directory))


# -- running --------------------------------------------------------------------------------------


def run_bisect(request: BisectRequest) -> BisectResult:
    """Runs as many points as it takes; bisect.json is replaced after each, so that a killed one leaves what it had."""
    for job in request.jobs[:1]:
        hide(job.env, job.words())
    run = output.prepare(request.out, request.name, force=request.force)
    about: dict[str, Any] = {
        "kind": "bisect",
        "name": request.name,
        "command": list(request.line),
        "started_at": output.now(),
    }
    output.write_run(run, **about)
    points, interrupted = request.points(), False
    found: Bisection | None = None
    with _probing(request, run, points) as probe:
        try:
            found = Bisector(points, probe, repeats=request.repeats).run()
        except KeyboardInterrupt:
            interrupted = True
    document = _write(run, request, points, found)
    output.write_run(run, **about, ended_at=output.now())
    code = EXIT_INTERRUPTED if interrupted else _exit_code(found.conclusion if found else "undecided")
    return BisectResult(directory=run.path, document=document, exit_code=code)


def _exit_code(conclusion: Conclusion) -> int:
    return EXIT_HEALTHY if conclusion == "nowhere" else EXIT_FINDING


@contextlib.contextmanager
def _probing(request: BisectRequest, run: RunDir, points: list[Point]) -> Iterator[Probe]:
    """A function that runs a point once more. One at a time: what runs beside it would change what a step costs."""
    with contextlib.ExitStack() as stack:
        open_slots = stack.enter_context(slots(1, run.path / "nodes", preload=request.preload))
        tree = stack.enter_context(worktree(top_of(Path.cwd()))) if request.commits else None

        def probe(index: int) -> Seen:
            number = len(points[index].runs) + 1
            directory = run.path / "points" / points[index].label.replace("/", "-") / f"{number:02d}"
            note(f"{request.axis} {points[index].label}, run {number} ... ", end="")
            if tree is None:
                trial = open_slots.run(request.jobs[index], directory, request.pace)
            else:
                trial = _at_commit(request, index, tree, open_slots, directory)
            seen = _seen(trial)
            found = seen.verdict
            kind = "" if found.cls == found.outcome else f" ({found.cls})"
            note(f"{found.outcome}{kind}")
            _write(run, request, points, None, more=(index, seen))
            return seen

        yield probe


def _at_commit(
    request: BisectRequest, index: int, tree: Worktree, open_slots: Slots, directory: Path
) -> Trial:
    assert request.commits is not None
    tree.go_to(request.commits[index])
    job = request.jobs[index]
    assert job.cwd is not None
    inside = tree.path / job.cwd.resolve().relative_to(tree.top)
    if not inside.is_dir():
        raise UsageError(
            f"{job.cwd} is not there at {request.labels[index]}", "start at the top of the checkout"
        )
    there = dataclasses.replace(
        job,
        argv=tuple(tree.moved(word) for word in job.argv),
        launcher=tuple(tree.moved(word) for word in job.launcher),
        env={**tree.environment(), **{k: tree.moved(v) for k, v in job.env.items()}},
        cwd=inside,
    )
    trial = open_slots.run(there, directory.resolve(), request.pace)
    _check_whose_code(trial, tree)
    return trial


def _check_whose_code(trial: Trial, tree: Worktree) -> None:
    """An editable install leads every commit's job back to the user's own checkout: then all commits look alike."""
    index = read_json(RunDir(path=trial.directory).sources_index, {})
    strangers = [file for file in index if Path(file).is_relative_to(tree.top)]
    if strangers:
        raise MachineError(
            f"the job of another commit ran {strangers[0]}, of your checkout as it is now",
            "is your package installed with pip install -e? Put its folder on PYTHONPATH, and start nsadiag so",
        )


def _seen(trial: Trial) -> Seen:
    from nsadiag.analysis.load import load_cell
    from nsadiag.analysis.matrix.costs import costs

    step_s = costs(load_cell(trial.directory))["step_s_median"]
    return Seen(
        directory=trial.directory,
        verdict=trial.verdict,
        wall_s=round(trial.wall_s, 3),
        step_s=float(step_s) if step_s else None,
        steps=trial.steps,
        timed_out=trial.ended_by_us,
    )


# -- what is written ------------------------------------------------------------------------------


def _write(
    run: RunDir,
    request: BisectRequest,
    points: list[Point],
    found: Bisection | None,
    *,
    more: tuple[int, Seen] | None = None,
) -> dict[str, Any]:
    """bisect.json, and at the end report.md. `more`: a run that is not in its point yet."""
    from nsadiag.reports.bisect import markdown, summary

    shown = [dataclasses.replace(p, runs=[*p.runs]) for p in points]
    if more:
        shown[more[0]].runs.append(more[1])
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "bisect",
        "name": request.name,
        "axis": request.axis,
        "fixed": request.fixed,
        "command": mask_command(request.jobs[0].words()),
        "conclusion": found.conclusion if found else None,
        "failure": found.wanted if found else None,
        "last_good": _label(shown, found.last_good) if found else None,
        "first_bad": _label(shown, found.first_bad) if found else None,
        "between": [p.label for p in found.between] if found else [],
        "slope": dataclasses.asdict(found.slope) if found and found.slope else None,
        "points_in_all": len(points),
        "points": [_point(run, p, i, request, found) for i, p in enumerate(shown) if p.runs],
        "limit_s": request.pace.timeout_s or None,
        "machine": output.machine(),
    }
    document["summary"] = summary(document)
    write_json(run.path / "bisect.json", document)
    if more is None:
        from nsadiag.reports.formats.bisect_page import render_bisect  # the analysis comes with its pictures

        write_private(run.report_md, markdown(document))
        # The subject of a commit may be in no encoding at all.
        replace_private(run.report_html, render_bisect(document, run.path).encode(errors="replace"))
    return document


def _label(points: list[Point], index: int | None) -> str | None:
    return None if index is None else points[index].label


def _point(
    run: RunDir, point: Point, index: int, request: BisectRequest, found: Bisection | None
) -> dict[str, Any]:
    return {
        "label": point.label,
        "value": point.value,
        "subject": request.commits[index].subject if request.commits else None,
        "state": point.state(found.wanted if found else None),
        "failures": point.failures,
        "step_s": point.step_s,
        "runs": [
            {
                "directory": str(seen.directory.resolve().relative_to(run.path.resolve())),
                "outcome": seen.verdict.outcome,
                "class": seen.verdict.cls,
                "summary": seen.verdict.summary,
                "guilty_ranks": list(seen.verdict.guilty_ranks),
                "signature": seen.verdict.signature,
                "where": dataclasses.asdict(seen.verdict.where) if seen.verdict.where else None,
                "fix": seen.verdict.fix,
                "step_s": seen.step_s,
                "steps": seen.steps,
                "wall_s": seen.wall_s,
                "timed_out": seen.timed_out,
            }
            for seen in point.runs
        ],
    }
