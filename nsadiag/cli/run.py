"""`nsadiag run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    WAIT,
    app,
    check_probes,
    place_of,
    print_directory,
    print_of_node,
    stall,
)
from nsadiag.errors import UsageError


@app.command(
    short_help="Run a launcher line, watch it, and give the verdict",
    options_metavar="[OPTIONS] -- CMD...",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: nsadiag run -- torchrun --standalone --nproc-per-node 2 repro/rank_conditional_save.py",
)
def run(
    context: typer.Context,
    out: Annotated[Path | None, OUT] = None,
    timeout: Annotated[float, typer.Option(help="Hard limit in seconds; 0: none", min=0)] = 0.0,
    stall_after: Annotated[
        str, typer.Option(help="Seconds without progress before a closer look, or auto")
    ] = "auto",
    on_hang: Annotated[str, typer.Option(help="stop or leave a job that hangs")] = "stop",
    probes: Annotated[
        str, typer.Option(help="light, full, none, or names with commas: light,parity")
    ] = "light",
    passthrough: Annotated[
        bool, typer.Option("--passthrough", help="End with the job's own exit code")
    ] = False,
    with_locals: Annotated[
        bool,
        typer.Option(
            "--locals", help="Add the values of local variables to the stacks; they may hold secrets"
        ),
    ] = False,
    cuda_core: Annotated[
        bool,
        typer.Option(
            "--cuda-core",
            help="Take a core dump of the GPU, without its memory, before a job that hangs is ended",
        ),
    ] = False,
    ring: Annotated[
        str,
        typer.Option(
            help="Hold black boxes on disk, in memory (/dev/shm, copied at the end), or auto: memory if --out is on a network"
        ),
    ] = "auto",
    nnodes: Annotated[int | None, NNODES] = None,
    node_rank: Annotated[int | None, NODE_RANK] = None,
    master_addr: Annotated[str | None, MASTER_ADDR] = None,
    master_port: Annotated[int | None, MASTER_PORT] = None,
    local_addr: Annotated[str | None, LOCAL_ADDR] = None,
    run_token: Annotated[str | None, RUN_TOKEN] = None,
    wait: Annotated[float, WAIT] = 300.0,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run any launcher line, watch it from inside and outside, and give the verdict."""
    from nsadiag.commands.run import RunRequest, run_once

    place = place_of(nnodes, node_rank, master_addr, master_port, local_addr, run_token, wait)
    if on_hang not in ("stop", "leave"):
        raise UsageError(f"--on-hang is {on_hang!r}", "choose stop or leave")
    if ring not in ("auto", "disk", "memory"):
        raise UsageError(f"--ring is {ring!r}", "choose auto, disk or memory")
    check_probes(probes)
    request = RunRequest(
        command=list(context.args),
        out=out,
        timeout_s=timeout,
        stall_after_s=stall(stall_after),
        on_hang=on_hang,  # type: ignore[arg-type]
        probes=probes,
        passthrough=passthrough,
        with_locals=with_locals,
        cuda_core=cuda_core,
        ring=ring,  # type: ignore[arg-type]
        force=force,
        quiet_stdout=as_json,
    )
    if place is None:
        result = run_once(request)
        print_directory(result.directory, as_json=as_json)
        raise typer.Exit(result.exit_code)
    from nsadiag.commands.run_on_nodes import run_on_nodes

    print_of_node(run_on_nodes(request, place), as_json=as_json)
