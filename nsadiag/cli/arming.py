"""`nsadiag arm` and `nsadiag disarm`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nsadiag.cli.shared import JSON, app
from nsadiag.errors import UsageError
from nsadiag.printing import show

PYTHON = typer.Option(
    "--python",
    metavar="PATH",
    help="The interpreter of the environment  [default: the one that runs nsadiag]",
)


@app.command(
    short_help="Have every distributed job of an environment recorded, and watched for stalls",
    epilog="Example: nsadiag arm --notify https://hooks.slack.com/services/T/B/x",
)
def arm(
    python: Annotated[str, PYTHON] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder of the bundles  [default: ~/.local/state/nsadiag/artifacts]",
        ),
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify", metavar="ADDRESS|COMMAND", help="Whom to notify of a stall; may be repeated"
        ),
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option("--metrics", metavar="FILE", help="OpenMetrics text, replaced every 15 s")
    ] = None,
    quota: Annotated[
        int,
        typer.Option("--quota", metavar="MIB", help="Of all bundles together; the oldest give way", min=20),
    ] = 200,
    variables: Annotated[
        bool,
        typer.Option("--variables", help="Change nothing: print the variables that arm an image or a job"),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Change nothing: show what is armed, and the jobs that record")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Be the watcher of this user on this node, until ended: for services"),
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Have every distributed job of an environment recorded in memory, and watched for stalls, by one file that `disarm` removes.

    With --status exits with 1 if the environment is not armed.
    """
    from nsadiag.commands.armed import arm as command

    if variables + status + watch > 1:
        raise UsageError("--variables, --status and --watch are one choice", "give one of them")
    request = command.ArmRequest(
        python=python, out=out, notify=tuple(notify or ()), metrics=metrics, quota_mib=quota
    )
    if status:
        _show_status(python, as_json=as_json)
    elif variables:
        show("\n".join(command.variable_lines(request)))
    elif watch:
        command.watch(request)
    else:
        made = command.arm(request)
        said = command.as_json(command.status(python)) if as_json else f"armed {made.prefix} by {made.file}"
        show(said)


def _show_status(python: str, *, as_json: bool) -> None:
    from nsadiag.commands.armed import arm as command
    from nsadiag.errors import EXIT_FINDING

    found = command.status(python)
    show(command.as_json(found) if as_json else "\n".join(command.lines_of(found)))
    raise typer.Exit(0 if found["armed"] else EXIT_FINDING)


@app.command(
    short_help="Take back what `nsadiag arm` did",
    epilog="Example: nsadiag disarm --python /opt/train/bin/python",
)
def disarm(python: Annotated[str, PYTHON] = "", as_json: Annotated[bool, JSON] = False) -> None:
    """Take back what `nsadiag arm` did. Jobs that run go on as they are, and record to their end; bundles stay."""
    from nsadiag.commands.armed import arm as command

    environment, was, jobs = command.disarm(python)
    if as_json:
        show(command.as_json(command.status(python)))
        return
    said = f"disarmed {environment.prefix}" if was else f"{environment.prefix} was not armed"
    show(f"{said}; {jobs} job{'s' * (jobs != 1)} that began before still record" if jobs else said)
