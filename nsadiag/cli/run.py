"""`nsadiag run`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsadiag.cli.mistakes import no_such_option, options_of
from nsadiag.cli.shared import (
    FORCE,
    JSON,
    LOCAL_ADDR,
    MASTER_ADDR,
    MASTER_PORT,
    NNODES,
    NODE_RANK,
    OUT,
    RUN_TOKEN,
    USER_CODE,
    WAIT,
    Grouped,
    app,
    check_probes,
    count_as_user_code,
    place_of,
    print_directory,
    print_of_node,
    stall,
)
from nsadiag.cli.shared import patience as seconds_of_patience
from nsadiag.errors import UsageError

if TYPE_CHECKING:
    from nsadiag.cluster.place import Place
    from nsadiag.commands.run import RunRequest


@contextlib.contextmanager
def _last_word(code: int | None) -> Iterator[None]:
    """Keep the job's exit code `code`, if given, even where showing the verdict fails."""
    try:
        yield
    except Exception as error:
        if code is None:
            raise
        with contextlib.suppress(OSError):
            print(f"nsadiag: no verdict is shown: {error!r}", file=sys.stderr)
        raise typer.Exit(code) from None


Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", help="Hard limit; 0: none", min=0, rich_help_panel="Hangs")
]
StallAfter = Annotated[
    str,
    typer.Option(
        metavar="SECONDS",
        help="Take snapshots after this long without progress, or auto",
        rich_help_panel="Hangs",
    ),
]
OnHang = Annotated[
    str,
    typer.Option(
        metavar="ACTION",
        help="stop a job that hangs (a suspected hang after --patience), stop-proven alone, or leave it",
        rich_help_panel="Hangs",
    ),
]
Patience = Annotated[
    str,
    typer.Option(
        envvar="NSADIAG_PATIENCE",
        metavar="SECONDS",
        help="Silence after which a suspected hang is taken for one, or auto: ten times the longest pause, two minutes at least",
        rich_help_panel="Hangs",
    ),
]
Probes = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="light, full, none, or names with commas: light,parity",
        rich_help_panel="Recording",
    ),
]
Notify = Annotated[
    str | None,
    typer.Option(
        envvar="NSADIAG_NOTIFY",
        metavar="TARGET",
        help="A webhook (https://...) or command that hears of a suspected hang and of the verdict",
    ),
]
Metrics = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write steps, rates, silences, waits for each rank and the outcome here, as OpenMetrics text",
    ),
]
Silent = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing of nsadiag's own before the verdict")
]
Passthrough = Annotated[bool, typer.Option("--passthrough", help="End with the job's own exit code")]
WithLocals = Annotated[
    bool,
    typer.Option(
        "--locals",
        help="Add the values of local variables to the stacks; they may hold secrets",
        rich_help_panel="Recording",
    ),
]
CudaCore = Annotated[
    bool,
    typer.Option(
        "--cuda-core",
        help="Take a core dump of the GPU, without its memory, before a job that hangs is ended",
        rich_help_panel="Recording",
    ),
]
Ring = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Keep the recorders on disk, in memory (/dev/shm, copied at the end), or auto: memory if --out is on a network",
        rich_help_panel="Recording",
    ),
]
DieWithMe = Annotated[
    bool,
    typer.Option("--die-with-me", help="End the job should nsadiag be killed; without it the job goes on"),
]
LogLimit = Annotated[
    float,
    typer.Option(
        metavar="MIB",
        help="Size of each log, of which the first and the last half are kept; 0: all of it",
        min=0,
        rich_help_panel="Recording",
    ),
]


def _check_option(context: typer.Context) -> None:
    """Raises UsageError where what should be the job begins as an option: one that is not there, or misspelt."""
    if context.args and context.args[0].startswith("-"):
        option = context.args[0].partition("=")[0]
        lists = "nsadiag run --help lists them; the job itself goes behind --"
        raise UsageError(*no_such_option(option, options_of(context.command), lists))


@app.command(
    cls=Grouped,
    short_help="Run a launcher line, watch it, and give the verdict",
    options_metavar="[OPTIONS] -- CMD...",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: nsadiag run -- torchrun --standalone --nproc-per-node 2 repro/rank_conditional_save.py",
)
def run(
    context: typer.Context,
    out: Annotated[Path | None, OUT] = None,
    timeout: Timeout = 0.0,
    stall_after: StallAfter = "auto",
    patience: Patience = "auto",
    on_hang: OnHang = "stop",
    probes: Probes = "light",
    notify: Notify = None,
    metrics: Metrics = None,
    passthrough: Passthrough = False,
    with_locals: WithLocals = False,
    cuda_core: CudaCore = False,
    ring: Ring = "auto",
    user_code: Annotated[str | None, USER_CODE] = None,
    die_with_me: DieWithMe = False,
    log_limit: LogLimit = 0.0,
    nnodes: Annotated[int | None, NNODES] = None,
    node_rank: Annotated[int | None, NODE_RANK] = None,
    master_addr: Annotated[str | None, MASTER_ADDR] = None,
    master_port: Annotated[int | None, MASTER_PORT] = None,
    local_addr: Annotated[str | None, LOCAL_ADDR] = None,
    run_token: Annotated[str | None, RUN_TOKEN] = None,
    wait: Annotated[float, WAIT] = 300.0,
    force: Annotated[bool, FORCE] = False,
    silent: Silent = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run any launcher line, watch it from inside and outside, and give the verdict."""
    from nsadiag.commands.run import RunRequest

    _check_option(context)
    count_as_user_code(user_code)
    place = place_of(nnodes, node_rank, master_addr, master_port, local_addr, run_token, wait)
    _check_choices(on_hang, ring)
    check_probes(probes)
    request = RunRequest(
        command=list(context.args),
        out=out,
        timeout_s=timeout,
        stall_after_s=stall(stall_after),
        patience_s=seconds_of_patience(patience),
        on_hang=on_hang,  # type: ignore[arg-type]
        probes=probes,
        notify=notify,
        metrics=metrics,
        passthrough=passthrough,
        with_locals=with_locals,
        cuda_core=cuda_core,
        ring=ring,  # type: ignore[arg-type]
        die_with_me=die_with_me,
        log_limit_mib=log_limit,
        force=force,
        silent=silent,
        quiet_stdout=as_json,
    )
    _run(request, place, as_json=as_json)


def _check_choices(on_hang: str, ring: str) -> None:
    if on_hang not in ("stop", "stop-proven", "leave"):
        raise UsageError(f"--on-hang is {on_hang!r}", "choose stop, stop-proven or leave")
    if ring not in ("auto", "disk", "memory"):
        raise UsageError(f"--ring is {ring!r}", "choose auto, disk or memory")


def _run(request: RunRequest, place: Place | None, *, as_json: bool) -> None:
    if place is None:
        from nsadiag.commands.run import run_once

        result = run_once(request)
        with _last_word(result.exit_code if request.passthrough else None):
            if result.failure is not None:
                raise result.failure
            print_directory(result.directory, as_json=as_json, is_new=True)
        raise typer.Exit(result.exit_code)
    from nsadiag.commands.run_on_nodes import run_on_nodes

    print_of_node(run_on_nodes(request, place), as_json=as_json)
