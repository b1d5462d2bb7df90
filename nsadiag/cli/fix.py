"""`nsadiag fix`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nsadiag.cli.shared import JSON, app
from nsadiag.errors import UsageError
from nsadiag.printing import show


@app.command(
    short_help="Repair a failed run's code, with proof",
    epilog="Example: nsadiag fix artifacts/20261120-101500-train\n\n"
    "Example: nsadiag fix artifacts/20261120-101500-train --patch mine.diff",
)
def fix(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or of a check")],
    patch: Annotated[
        Path | None,
        typer.Option("--patch", metavar="FILE", help="Judge this unified diff instead of proposing any"),
    ] = None,
    propose: Annotated[
        str,
        typer.Option(
            "--propose",
            metavar="CMD",
            help="Also judge the diffs that CMD prints, given the verdict on stdin",
        ),
    ] = "",
    write: Annotated[
        bool, typer.Option("--write", help="Apply the patch if it is fixed; to a clean git tree only")
    ] = False,
    seconds: Annotated[float, typer.Option(metavar="S", min=1, help="Time limit of one trial")] = 60.0,
    budget: Annotated[
        float, typer.Option(metavar="S", min=1, help="Begin no other candidate after S seconds")
    ] = 900.0,
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help="terminal or md")] = "terminal",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Propose patches for the failure in a run directory, try each in a copy, and print the first one that is proven.

    Exits with 0 where one is fixed, 1 where one agrees at best.
    """
    from nsadiag.commands.fix import shown
    from nsadiag.commands.fix.fix import FixRequest, fix_once

    if format_ not in ("terminal", "md"):
        raise UsageError(f"no such format: {format_}", "choose terminal or md")
    result = fix_once(
        FixRequest(path=path, patch=patch, propose=propose, write=write, seconds=seconds, budget_s=budget)
    )
    shown.keep(result)
    if as_json:
        show(json.dumps(shown.document(result), indent=1))
    else:
        show("\n".join(shown.markdown(result) if format_ == "md" else shown.lines(result)))
    raise typer.Exit(result.exit_code)
