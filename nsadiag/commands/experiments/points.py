"""The ordered points of a bisection: the values of a spec's axis, or the commits of a checkout."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.agent.job.entry_script import check_words
from nsadiag.errors import UsageError
from nsadiag.experiments.bisect import Point
from nsadiag.experiments.commits import Commit, commits_between, top_of
from nsadiag.experiments.trial import Job, Pace
from nsadiag.spec import Axis, Cell, Matrix, find_spec, load_matrix, select

MOST_VALUES = 100_000
TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class BisectRequest:
    """A parsed `nsadiag bisect` line: points in order, what each runs, and where it runs."""

    name: str
    axis: str
    labels: list[str]
    values: list[float | None]
    jobs: list[Job]
    pace: Pace
    preload: tuple[str, ...] = ()
    commits: list[Commit] | None = None
    fixed: str = ""  # the other factors, where there are any
    repeats: int = 3
    out: Path | None = None
    force: bool = False
    line: tuple[str, ...] = ()

    def points(self) -> list[Point]:
        return [Point(label=n, value=v) for n, v in zip(self.labels, self.values, strict=True)]


def axis_request(
    matrix: Matrix,
    *,
    axis: str | None,
    low: int | None,
    high: int | None,
    expression: str | None,
    **more: Any,
) -> BisectRequest:
    """Along an axis of a spec, all other factors fixed. Raises UsageError where that is not one line of points."""
    name = axis or _only_axis(matrix)
    if name not in matrix.axes:
        raise UsageError(f"no such axis: {name}", f"choose from {', '.join(matrix.axes)}")
    if low is not None or high is not None:
        matrix = _ranged(matrix, name, low, high)
    cells = _one_line(_chosen(matrix, expression), name, list(matrix.axes))
    values = [_number(cell.factors[name]) for cell in cells]
    if all(v is not None for v in values):
        order = sorted(range(len(cells)), key=lambda i: values[i] or 0.0)
        cells, values = [cells[i] for i in order], [values[i] for i in order]
    if len(cells) < 2:
        raise UsageError(f"axis {name} has one value", "give two ends with --from and --to")
    check_words(cells[0].argv)
    rest = {k: v for k, v in cells[0].factors.items() if k != name}
    return BisectRequest(
        name=f"bisect-{matrix.name}-{name}",
        axis=name,
        labels=[cell.factors[name] for cell in cells],
        values=values,
        jobs=[Job(argv=tuple(c.argv), world_size=c.world_size, env=c.env) for c in cells],
        pace=Pace(stall_after_s=matrix.stall_after_s, timeout_s=matrix.timeout_s, probes=matrix.probes),
        preload=tuple(matrix.preload),
        fixed=", ".join(f"{k}={v}" for k, v in rest.items()),
        **more,
    )


def _only_axis(matrix: Matrix) -> str:
    ordered = [n for n, a in matrix.axes.items() if len(a.labels()) > 1 and all(_number(v) is not None for v in a.labels())]  # fmt: skip
    if len(ordered) != 1:
        known = ", ".join(ordered or matrix.axes)
        raise UsageError("which axis is not clear", f"choose one with --axis: {known}")
    return ordered[0]


def _ranged(matrix: Matrix, name: str, low: int | None, high: int | None) -> Matrix:
    """The same with every whole number between two ends as the axis's values."""
    axis = matrix.axes[name]
    if isinstance(axis.values, dict) or "{value}" not in axis.args + "".join(axis.env.values()):
        raise UsageError(
            f"axis {name} has settings of its own for each value, so --from and --to mean nothing",
            "they need an axis whose args or env hold {value}",
        )
    known = [v for v in (_number(label) for label in axis.labels()) if v is not None]
    first = low if low is not None else int(min(known, default=1))
    last = high if high is not None else int(max(known, default=first))
    if not first < last or last - first > MOST_VALUES:
        raise UsageError(f"there is nothing to halve from {first} to {last}", "give --from below --to")
    ranged = Axis(values=list(range(first, last + 1)), args=axis.args, env=axis.env)
    # Not validated anew: of a range a million values long that takes seconds, and it was made by us.
    return matrix.model_copy(update={"axes": {**matrix.axes, name: ranged}})


def _chosen(matrix: Matrix, expression: str | None) -> list[Cell]:
    return select(matrix.cells(), expression) if expression else matrix.cells()


def _one_line(cells: list[Cell], axis: str, axes: list[str]) -> list[Cell]:
    others = [name for name in axes if name != axis]
    lines: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        lines.setdefault(tuple(cell.factors[name] for name in others), []).append(cell)
    if len(lines) > 1:
        one = next(iter(lines))
        example = " and ".join(f"{name}={value}" for name, value in zip(others, one, strict=True))
        raise UsageError(
            f"bisect goes along one axis, and {len(lines)} combinations of {' and '.join(others)} are left",
            f'choose one value of each with -k, for example -k "{example}"',
        )
    return cells


def _number(label: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(label)
    return None


def git_request(
    span: str, command: Sequence[str], *, cell: Cell | None, pace: Pace, **more: Any
) -> BisectRequest:
    """Along the commits of the checkout that we are in: a launcher line, or one cell of a spec."""
    top = top_of(Path.cwd())
    commits = commits_between(top, span)
    words = tuple(command or (cell.command() if cell else ()))
    if not words:
        raise UsageError("no command given", "put the job after `--`, or name a spec with one cell (-k)")
    job = Job(argv=words[1:], launcher=words[:1], env=cell.env if cell else {}, cwd=Path.cwd())
    return BisectRequest(
        name=f"bisect-{top.name}",
        axis="commit",
        labels=[commit.label for commit in commits],
        values=[None] * len(commits),
        jobs=[job] * len(commits),
        pace=pace,
        commits=commits,
        **more,
    )


def parsed(
    words: Sequence[str],
    *,
    axis: str | None,
    low: int | None,
    high: int | None,
    expression: str | None,
    span: str | None,
    timeout_s: float | None,
    **more: Any,
) -> BisectRequest:
    """The request that a command line makes. Raises UsageError."""
    if span is None:
        if len(words) != 1:
            raise UsageError(
                "give one matrix, or --git GOOD..BAD with a command", "nsadiag bisect nsa-quick --axis layers"
            )
        matrix = _with_timeout(load_matrix(find_spec(words[0])), timeout_s)
        return axis_request(matrix, axis=axis, low=low, high=high, expression=expression, **more)
    if axis or low is not None or high is not None:
        raise UsageError(
            "--git goes along commits, so there is no --axis, --from or --to", "leave one of them out"
        )
    if len(words) == 1 and not shutil.which(words[0]):
        matrix = _with_timeout(load_matrix(find_spec(words[0])), timeout_s)
        cells = _chosen(matrix, expression)
        if len(cells) > 1:
            raise UsageError(f"{len(cells)} cells, and --git takes one", f'choose with -k "{cells[0].id}"')
        pace = Pace(stall_after_s=matrix.stall_after_s, timeout_s=matrix.timeout_s, probes=matrix.probes)
        return git_request(span, (), cell=cells[0], pace=pace, **more)
    if expression:
        raise UsageError("-k chooses a cell, and there is no matrix", "name a spec, or leave -k out")
    if words and shutil.which(words[0]) is None:
        raise UsageError(f"no such command: {words[0]}", "give the launcher line as you would type it")
    pace = Pace(timeout_s=TIMEOUT_S if timeout_s is None else timeout_s)
    return git_request(span, words, cell=None, pace=pace, **more)


def _with_timeout(matrix: Matrix, timeout_s: float | None) -> Matrix:
    return matrix if timeout_s is None else matrix.model_copy(update={"timeout_s": timeout_s})


def plan(request: BisectRequest, *, as_json: bool) -> str:
    """The points to choose from and the largest number of runs, without a run."""
    count = len(request.labels)
    steps = 2 + max(count - 2, 0).bit_length()
    if as_json:
        points = [
            {"label": n, "command": j.words()} for n, j in zip(request.labels, request.jobs, strict=True)
        ]
        return json.dumps({"axis": request.axis, "points": points, "halvings": steps}, indent=1)
    named = (*range(min(count, 3)), *range(max(count - 2, 3), count))
    rows = [f"{request.axis} {request.labels[i]}\n    {shlex.join(request.jobs[i].words())}" for i in named]
    repeats = 2 * (request.repeats - 1)
    return "\n".join(
        [*rows, f"{count} points; about {steps} runs, and {repeats} more to repeat those at the boundary"]
    )
