"""`nsadiag check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nsadiag.cli.shared import FORCE, JSON, OUT, VERBOSE, app, print_directory
from nsadiag.printing import show


@app.command(
    short_help="Rehearse a job on this machine: do all ranks make the same calls?",
    options_metavar="[OPTIONS] -- CMD...",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: nsadiag check -- torchrun --standalone --nproc-per-node 4 train.py --config small.yaml",
)
def check(
    context: typer.Context,
    out: Annotated[Path | None, OUT] = None,
    seconds: Annotated[float, typer.Option(metavar="S", min=1, help="Stop undecided after S seconds")] = 60.0,
    force: Annotated[bool, FORCE] = False,
    verbose: Annotated[bool, VERBOSE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Rehearse a launcher line on this machine: each call that communicates is compared before it is made.

    Exits with 0 where all calls agreed, 1 where they differ or a rank raised, 3 where the time was over before.
    """
    from nsadiag.commands.experiments.check import check_once
    from nsadiag.commands.run import RunRequest

    request = RunRequest(
        command=list(context.args), out=out, timeout_s=seconds, force=force, silent=True, quiet_stdout=True,
        die_with_me=True,
    )  # fmt: skip
    checked = check_once(request)
    if not as_json:
        for line in checked.rehearsal.lines():
            show(line)
    if checked.rehearsal.answer != "agreed" or checked.is_wrong or as_json:
        print_directory(checked.run.directory, as_json=as_json, is_new=True, verbose=verbose)
    raise typer.Exit(checked.exit_code)
