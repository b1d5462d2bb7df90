"""`nsadiag bisect` and `nsadiag shrink`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nsadiag.cli.shared import FORCE, JSON, OUT, app
from nsadiag.printing import show

REPEAT = typer.Option(
    metavar="N", help="Number of runs of the points at the boundary; failures may be flaky", min=1
)
LIMIT_OF_A_RUN = typer.Option(
    metavar="SECONDS", help="Stop each run after this long; 0: never  [default: the spec's, or 300]", min=0
)


@app.command(
    short_help="Find the value or the commit at which a job starts to fail",
    options_metavar="[OPTIONS]",
    epilog="Example: nsadiag bisect nsa-quick --axis layers --from 1 --to 16 -k 'checkpointing=none and parallel=ddp'\n\n"
    "Example: nsadiag bisect --git v1.2..HEAD -- torchrun --standalone --nproc-per-node 2 train.py",
)
def bisect(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="SPEC | -- CMD", help="A matrix; or, with --git, a launcher line"),
    ] = None,
    axis: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The axis to search; needed if the spec has several"),
    ] = None,
    low: Annotated[
        int | None, typer.Option("--from", metavar="N", help="The first value, instead of the spec's")
    ] = None,
    high: Annotated[
        int | None, typer.Option("--to", metavar="N", help="The last value, instead of the spec's")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option("-k", metavar="EXPR", help="Fix the other axes: only cells whose id matches"),
    ] = None,
    git: Annotated[
        str | None,
        typer.Option("--git", metavar="GOOD..BAD", help="Search the commits of this checkout instead"),
    ] = None,
    repeat: Annotated[int, REPEAT] = 3,
    timeout: Annotated[float | None, LIMIT_OF_A_RUN] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the points and their commands, and run nothing")
    ] = False,
    out: Annotated[Path | None, OUT] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Find the value of an axis, or the commit, at which a job starts to fail; or report that it only gets slower."""
    from nsadiag.commands.experiments import bisect as command
    from nsadiag.commands.experiments import points

    request = points.parsed(
        words or [],
        axis=axis,
        low=low,
        high=high,
        expression=select,
        span=git,
        timeout_s=timeout,
        repeats=repeat,
        out=out,
        force=force,
        line=("nsadiag", *sys.argv[1:]),
    )
    if dry_run:
        show(points.plan(request, as_json=as_json))
        return
    result = command.run_bisect(request)
    show(command.shown(result, as_json=as_json))
    raise typer.Exit(result.exit_code)


@app.command(
    short_help="Reduce a failing run to a short, self-contained script",
    epilog="Example: nsadiag shrink artifacts/20261120-101500-train --out short",
)
def shrink(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CELL", help="A run directory, or cells/ID of a matrix")
    ],
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit of the search", min=1)] = 150.0,
    slots: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Number of trials at once  [default: one per two cores, at least 2]", min=1
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would be reduced and what would stay, and run nothing"),
    ] = False,
    out: Annotated[Path | None, OUT] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Reduce a failing run to a short, self-contained script that fails in the same way."""
    from nsadiag.commands.experiments import shrink as command

    request = command.ShrinkRequest(
        path=path,
        budget_s=budget,
        slots=slots or command.most_slots(),
        out=out,
        force=force,
        line=("nsadiag", *sys.argv[1:]),
    )
    if dry_run:
        show(command.shown_plan(request, as_json=as_json))
        return
    result = command.run_shrink(request)
    show(command.shown(result, as_json=as_json))
    raise typer.Exit(result.exit_code)
