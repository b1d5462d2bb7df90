"""Commands about nsadiag itself: `nsadiag demo`, `doctor`, `explain`, `list` and `mcp`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from nsadiag.cli.assistance import completion
from nsadiag.cli.shared import FORCE, JSON, OUT, app, console, print_directory
from nsadiag.printing import show


@app.command(
    short_help="Run a job that fails on purpose, and report on it",
    epilog="Example: nsadiag demo rank_killed_sigkill",
)
def demo(
    fault: Annotated[
        str,
        typer.Argument(
            metavar="FAULT",
            help="A script, or a class: nsadiag list --faults",
            autocompletion=completion.faults,
        ),
    ] = "local_lock_deadlock_dropped_record",
    out: Annotated[Path | None, OUT] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run a job that fails on purpose, and report on it. Takes under a minute."""
    from nsadiag.commands.demo import demo_request
    from nsadiag.commands.run import run_once

    result = run_once(demo_request(fault, out=out, force=force, quiet_stdout=as_json))
    print_directory(result.directory, as_json=as_json)
    raise typer.Exit(result.exit_code)


@app.command(
    short_help="Check which evidence this machine allows, and how to get the rest",
    epilog="Example: nsadiag doctor",
)
def doctor(
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The Python that your jobs use  [default: the first on PATH]"),
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(
            "--pid", metavar="PID", help="Also try to read this running process, without pausing it"
        ),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            "--gpus",
            metavar="S",
            min=1,
            max=86400,
            help="Instead, load every GPU for S seconds: wrong bits, a slow GPU or link (not beside a job)",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory where runs will be written")] = Path(
        "artifacts"
    ),
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Check which evidence this machine allows nsadiag to collect, what prevents the rest, and how to fix that."""
    from nsadiag.commands import doctor as command

    checks, tried = command.run_checks(python=python, out=out, pid=pid, gpus_s=gpus)
    if as_json:
        show(command.as_json(checks, tried))
    else:
        command.show(checks, tried, console(), of_gpus=gpus is not None)
    raise typer.Exit(command.exit_code(checks))


@app.command(
    short_help="Show the page of a class or of a mechanism",
    epilog="Example: nsadiag explain missing_rank",
)
def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CLASS | MECHANISM",
            help="A name that a verdict, or nsadiag list, shows",
            autocompletion=completion.classes,
        ),
    ],
) -> None:
    """Show what a class or a mechanism means, how it is detected, an example, and what to do about it."""
    from nsadiag.commands.explain import class_pages

    class_pages.show(class_pages.page_of(name), console())


@app.command(
    "list",
    short_help="List probes, captures, detectors, classes, or the faults to try",
    epilog="Example: nsadiag list --faults",
)
def list_(
    faults: Annotated[
        bool, typer.Option("--faults", help="List the scripts that nsadiag demo can run")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List probes, captures, detectors, engines, reporters and classes, or the faults to try."""
    from nsadiag.commands import listing as command
    from nsadiag.commands.faults import faults as every_fault

    if as_json:
        known = {"faults": {f.name: f.to_json() for f in every_fault()}} if faults else command.parts()
        show(json.dumps(known, indent=1))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None
    show("\n".join(command.fault_table(width) if faults else command.part_table(width)))


@app.command(
    "mcp",
    short_help="Serve verdicts to coding agents (MCP, stdio)",
    epilog="Example: nsadiag mcp",
)
def mcp(
    may_act: Annotated[
        bool, typer.Option("--allow-run", help="Also allow agents to attach to jobs and to run commands")
    ] = False,
) -> None:
    """Serve the Model Context Protocol on stdin and stdout: verdict, evidence, code, compare, runs. Without --allow-run it only reads."""
    from nsadiag.commands.agents.server import serve

    serve(may_act=may_act)
