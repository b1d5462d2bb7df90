"""`nsadiag check` and `nsadiag confirm`."""

from __future__ import annotations

import json
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
    nproc: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of ranks, in the place of torchrun's")
    ] = None,
    steps: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Leave out the middle of longer epochs: N to 2N batches stay"),
    ] = 0,
    in_place: Annotated[bool, typer.Option("--in-place", help="Keep what the script writes")] = False,
    network: Annotated[bool, typer.Option("--network", help="Leave the network to the script")] = False,
    force: Annotated[bool, FORCE] = False,
    verbose: Annotated[bool, VERBOSE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Rehearse a launcher line on this machine: each call that communicates is compared before it is made.

    Exits with 0 where all calls agreed, 1 where they differ or a rank raised, 3 where the time was over before.
    """
    from nsadiag.commands.experiments.check import CheckOptions, check_once
    from nsadiag.commands.run import RunRequest

    request = RunRequest(
        command=list(context.args), out=out, timeout_s=seconds, force=force, silent=True, quiet_stdout=True,
        die_with_me=True, healthy_report=False,
    )  # fmt: skip
    options = CheckOptions(ranks=nproc, steps=steps, in_place=in_place, network=network)
    checked = check_once(request, options)
    if not as_json:
        for line in checked.rehearsal.lines():
            show(line)
    if checked.rehearsal.answer != "agreed" or checked.is_wrong or as_json:
        print_directory(checked.run.directory, as_json=as_json, is_new=True, verbose=verbose)
    raise typer.Exit(checked.exit_code)


@app.command(
    short_help="Rehearse a failed run's command, to record the cause that was inferred",
    epilog="Example: nsadiag confirm artifacts/20261120-101500-train",
)
def confirm(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CELL", help="A run directory, or cells/ID of a matrix")
    ],
    seconds: Annotated[
        float, typer.Option(metavar="S", min=1, help="Stop the rehearsal after S seconds")
    ] = 60.0,
    nproc: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of ranks, in the place of torchrun's")
    ] = None,
    out: Annotated[Path | None, OUT] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Rehearse the command of a run that hung or crashed, and compare what it records with the cause that was inferred.

    Exits with 0 where the cause is on record now, 1 where it is refuted, 3 where the rehearsal does not tell.
    """
    from nsadiag.commands.experiments.confirm import ConfirmRequest, confirm_once

    result = confirm_once(ConfirmRequest(path=path, seconds=seconds, ranks=nproc, out=out, force=force))
    if as_json:
        show(json.dumps(result.document(), indent=1))
    else:
        for line in result.lines():
            show(line)
    raise typer.Exit(result.exit_code)
