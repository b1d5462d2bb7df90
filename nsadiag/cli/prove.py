"""`nsadiag prove`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nsadiag.cli.shared import FORCE, JSON, OUT, VERBOSE, app, print_directory
from nsadiag.printing import show


@app.command(
    short_help="Prove a job: do all ranks compute what one process computes?",
    options_metavar="[OPTIONS] -- CMD...",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: nsadiag prove -- torchrun --nproc-per-node 4 train.py --config small.yaml",
)
def prove(
    context: typer.Context,
    out: Annotated[Path | None, OUT] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Optimizer steps to compare")] = 12,
    batch_option: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The script's option for a rank's batch: alone, it is given that of all"
        ),
    ] = "",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Compare the job, stopped after a checkpoint and started again, with itself in one go",
        ),
    ] = False,
    against: Annotated[
        str,
        typer.Option(
            metavar="RUN|COMMIT",
            help="Compare with an earlier proof's run, or with what this commit computes",
        ),
    ] = "",
    real: Annotated[bool, typer.Option("--real", help="Launch the job as it is, not rehearsed")] = False,
    seconds: Annotated[float, typer.Option(metavar="S", min=1, help="Limit of each run")] = 120.0,
    force: Annotated[bool, FORCE] = False,
    verbose: Annotated[bool, VERBOSE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run a torchrun line on its ranks and alone, and compare what both compute in their first steps.

    Exits with 0 where it is the same, 1 where something is wrong or the job fails, 3 where the two cannot be compared.
    """
    from nsadiag.commands.experiments.prove import ProveOptions, prove_once, shown
    from nsadiag.commands.run import RunRequest

    request = RunRequest(
        command=list(context.args), out=out, timeout_s=seconds, force=force, silent=True, quiet_stdout=True,
        die_with_me=True, healthy_report=False,
    )  # fmt: skip
    options = ProveOptions(steps=steps, real=real, batch_option=batch_option, resume=resume, against=against)
    proved = prove_once(request, options)
    if as_json:
        show(shown(proved))
    else:
        for line in proved.lines():
            show(line)
        if proved.answer in ("differs", "wrong", "failed"):
            print_directory(proved.directory, as_json=False, is_new=True, verbose=verbose)
    raise typer.Exit(proved.exit_code)
