"""Commands that start no job: `nsadiag attach`, `analyze`, `report`, `diff`, `invariants`, `facts`, `where` and `top`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from nsadiag.cli.assistance import completion
from nsadiag.cli.shared import (
    FORCE,
    FORMAT,
    JSON,
    OUT,
    PATHS,
    VERBOSE,
    app,
    check_format,
    console,
    limit,
    print_directory,
    print_in,
)
from nsadiag.errors import UsageError
from nsadiag.printing import note, show


@app.command(
    short_help="Diagnose a job that is already running or stuck",
    epilog="Example: nsadiag attach $(pgrep -f 'torchrun.*train.py')",
)
def attach(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PID | slurm:JOBID | ray:JOB", help="The launcher, or ranks; or a job of Slurm's or Ray's"
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="A run directory whose job is still running",
            autocompletion=completion.runs,
        ),
    ] = None,
    everyone: Annotated[
        bool,
        typer.Option("--all", help="Each distributed job of yours on this machine, with whom it talks to"),
    ] = False,
    roles: Annotated[
        list[str] | None,
        typer.Option(
            "--role", metavar="NAME=PID", help="A part of a job of several launchers; may be repeated"
        ),
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --all, on each of N nodes at once, sharing --out")
    ] = 1,
    out: Annotated[Path | None, OUT] = None,
    force: Annotated[bool, FORCE] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Stay, and say what changes, until the job ends or Ctrl-C")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Diagnose a job that is already running or stuck, and leave it as it is."""
    from nsadiag.commands.attach.local import AttachRequest, attach_once

    if follow and as_json:
        raise UsageError("--follow with --json", "nsadiag attach --json answers once")
    result = attach_once(
        AttachRequest(
            targets=targets or [],
            run=run,
            out=out,
            force=force,
            follow=follow,
            everyone=everyone,
            nodes=nodes,
            roles=tuple(roles or ()),
        )
    )
    if not follow:
        print_directory(result.directory, as_json=as_json)
    raise typer.Exit(result.exit_code)


@app.command(
    short_help="Diagnose from files: run directories, dumps, stacks, logs",
    epilog="Example: nsadiag analyze /tmp/nccl_traces slurm-4711.out",
)
def analyze(
    paths: Annotated[list[Path], PATHS],
    why_not: Annotated[
        str | None,
        typer.Option(
            "--why-not",
            metavar="CLASS | MECHANISM",
            help="Print the facts for which this is not the verdict, and the path to the code that found them",
            autocompletion=completion.classes,
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="List every rule and its result")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --why-not or --explain: every answer that a rule was given")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Also write verdict.json, report.md and report.html"),
    ] = None,
    force: Annotated[bool, FORCE] = False,
    format_: Annotated[str, FORMAT] = "terminal",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Diagnose from files that are already on disk; needs neither torch nor a GPU."""
    if why_not is not None or explain:
        _print_trials(paths, why_not, as_json=as_json, everything=everything)
        return
    from nsadiag.commands import analyze as command
    from nsadiag.errors import EXIT_FINDING, EXIT_HEALTHY, EXIT_TIMEOUT

    check_format(format_)
    report = command.judged(paths, out=out, force=force)
    print_in(report, "json" if as_json else format_)
    codes = {"healthy": EXIT_HEALTHY, "incomplete": EXIT_TIMEOUT}
    raise typer.Exit(codes.get(command.outcome_of(report), EXIT_FINDING))


def _print_trials(paths: list[Path], why_not: str | None, *, as_json: bool, everything: bool) -> None:
    import json

    from nsadiag.commands.explain import document as trials
    from nsadiag.commands.explain.text import text_of

    document = trials.explain(paths) if why_not is None else trials.why_not(paths, why_not)
    show(json.dumps(document, indent=2) if as_json else text_of(document, everything=everything))


@app.command(
    short_help="Show a report, in any format",
    epilog="Example: nsadiag report artifacts/20261120-101500-train --format md",
)
def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            help="A run or matrix directory, or files of other tools  [default: the newest under artifacts/]",
            autocompletion=completion.runs,
        ),
    ] = None,
    format_: Annotated[str, FORMAT] = "terminal",
    verbose: Annotated[bool, VERBOSE] = False,
    editor: Annotated[
        str | None,
        typer.Option(
            "--editor",
            metavar="NAME",
            help="html: lines open in it: vscode, cursor, pycharm, zed, ..., or a pattern with {file} and {line}",
            envvar="NSADIAG_EDITOR",
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show a report on stdout, in any format."""
    if editor:
        from nsadiag.reports.formats import editors

        os.environ[editors.VARIABLE] = editors.check(editor)
    from nsadiag.reports.experiments import is_experiment, render_experiment
    from nsadiag.reports.load import load_report

    if not paths:
        from nsadiag.commands.runs import latest

        paths = [latest()]
    if len(paths) == 1 and is_experiment(paths[0]):
        show(render_experiment(paths[0], "json" if as_json else format_), end="")
        return
    check_format(format_)
    print_in(load_report(*paths), "json" if as_json else format_, verbose=verbose)


@app.command(
    short_help="Compare two runs or two ranks",
    epilog="Example: nsadiag diff artifacts/yesterday artifacts/today",
)
def diff(
    a: Annotated[
        Path,
        typer.Argument(
            metavar="A",
            help="A run, a cell of a matrix, a rank (RUN/ranks/00000), or a file, folder or archive of other tools",
            autocompletion=completion.runs,
        ),
    ],
    b: Annotated[
        Path, typer.Argument(metavar="B", help="What to compare it with", autocompletion=completion.runs)
    ],
    everything: Annotated[bool, typer.Option("--all", help="Also show what is equal")] = False,
    format_: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="terminal, html or json; html is a page, on stdout"),
    ] = "terminal",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compare two runs or two ranks: environment, versions, settings, verdict, timing, parameters.

    Exits with 1 if anything but the timing differs.
    """
    from nsadiag.commands import diff as command

    if format_ not in ("terminal", "html", "json"):
        raise UsageError(f"no such format for this: {format_}", "choose terminal, html or json")
    rows = command.rows_of(a, b)
    if as_json or format_ == "json":
        show(command.as_json(rows, a, b))
    elif format_ == "html":
        show(command.page_of(rows, a, b), end="")
    else:
        command.show(rows, a, b, console(), everything=everything)
    raise typer.Exit(command.exit_code(rows))


@app.command(
    short_help="Keep the invariants of a good run, and check a later one",
    epilog="Example: nsadiag invariants artifacts/today --against good.json",
)
def invariants(
    path: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory", autocompletion=completion.runs)
    ],
    kept: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Invariants of a good run, to check this one against"),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print the invariants of a run as JSON, or with --against what it breaks of those of another run.

    Exits with 1 if it breaks any.
    """
    import json

    from nsadiag.commands import invariants as command
    from nsadiag.errors import EXIT_FINDING

    if kept is None:
        show(json.dumps(command.document_of(path), indent=1))
        return
    found = command.against(path, kept)
    show(command.as_json(found) if as_json else command.text_of(found))
    if found:
        raise typer.Exit(EXIT_FINDING)


@app.command(
    short_help="Print the tables that a verdict is made from",
    epilog="Example: nsadiag facts artifacts/today steps --rank 1",
)
def facts(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH... [TABLE]",
            help="A run directory, or files of other tools; the name of a table  [default: a list of all tables]",
            autocompletion=completion.runs_or_tables,
        ),
    ],
    ranks: Annotated[
        list[int] | None, typer.Option("--rank", metavar="N", help="Rows of this rank; may be repeated")
    ] = None,
    most: Annotated[
        int, typer.Option("--rows", metavar="N", help="Rows of the text, the last ones; 0: all", min=0)
    ] = 40,
    format_: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="text, json or csv; the latter two have all rows"),
    ] = "text",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print the tables that a verdict is made from: events, steps, calls, thread states, who waits for whom."""
    from nsadiag.commands import facts as command

    found = command.facts_of(*command.paths_and_table(words), ranks or ())
    if as_json or format_ == "json":
        show(command.as_json(found), end="")
    elif format_ == "csv":
        show(command.as_csv(found), end="")
    elif format_ == "text":
        command.show(found, console(), most=most)
    else:
        raise UsageError(f"no such format: {format_}", "choose from text, json, csv")


@app.command(
    short_help="Show where every rank stands now: line, call, since when",
    epilog="Example: nsadiag where $(pgrep -f 'torchrun.*train.py')",
)
def where(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PID | DIR | slurm:JOBID | ray:JOB",
            help="The launcher, or ranks; a run directory; or a job of Slurm's or Ray's  [default: the newest run under artifacts/]",
            autocompletion=completion.runs,
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show where every rank stands now. Nothing is paused, judged or written."""
    from nsadiag.commands.live import where as command

    found = command.look(targets or [])
    if as_json:
        show(command.as_json(found))
    else:
        command.show(found, console)


@app.command(
    short_help="Show what every rank is doing while the job runs",
    epilog="Example: nsadiag top artifacts/20261120-101500-train",
)
def top(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="A run or matrix in progress  [default: the newest under artifacts/]",
            autocompletion=completion.runs,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show what every rank is doing while the job runs: step, rate, phase, line, last event. No rank is paused."""
    from nsadiag.commands.live import top as command

    if directory is None:
        from nsadiag.commands.runs import latest

        directory = latest()
    if as_json:
        show(command.as_json(command.look(directory)))
    else:
        command.follow(directory, console(), once=once)


@app.command("ls", short_help="List the runs under artifacts/, newest first", epilog="Example: nsadiag ls")
def ls(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory that contains the runs")
    ] = Path("artifacts"),
    failed: Annotated[
        bool, typer.Option("--failed", help="Those alone whose verdict is not healthy")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List the runs under artifacts/, newest first: when, outcome, class, guilty ranks, the times that it failed like this, directory."""
    from nsadiag.commands import runs

    known = runs.listed(folder)
    found = [run for run in known if run.failed or not failed]
    none = f"no {'failed ' if failed else ''}run in {folder}"
    show(runs.as_json(found) if as_json else "\n".join(runs.lines(found, known) or [none]))


@app.command(
    short_help="Remove old runs from artifacts/", epilog="Example: nsadiag clean --keep 10 --dry-run"
)
def clean(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory that contains the runs")
    ] = Path("artifacts"),
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", help="Number of runs to keep, newest first", min=0),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Those alone whose verdict is not healthy")
    ] = False,
    older: Annotated[
        float | None,
        typer.Option("--older", metavar="AGE", help="Those alone that are older than 12h, 7d", parser=limit),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Remove finished runs. Directories that you named with --out are kept. At a terminal it asks before more than one goes."""
    from nsadiag.commands import runs

    if keep is None and older is None and not failed:
        raise UsageError("nothing says which runs are to go", "give --keep N, --failed or --older 7d")
    gone = runs.removable(folder, keep or 0, failed=failed, older_s=older)
    if len(gone) > 1 and not (dry_run or yes or as_json) and sys.stdin.isatty():
        note("\n".join(runs.lines(gone)))
        typer.confirm(f"remove these {len(gone)} runs?", abort=True, err=True)
    if not dry_run:
        runs.remove(gone)
    if as_json:
        show(runs.as_json(gone))
    else:
        for run in gone:
            show(f"{'would remove' if dry_run else 'removed'} {run.directory}")
        if not gone:
            note(f"nothing to remove in {folder}")
