"""`nsadiag run`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from nsadiag.agent import interrupts
from nsadiag.cli.assistance import completion
from nsadiag.cli.assistance.mistakes import no_such_option, options_of
from nsadiag.cli.shared import (
    FORCE,
    GPUS_PER_NODE,
    JSON,
    LOCAL_ADDR,
    MASTER_ADDR,
    MASTER_PORT,
    NNODES,
    NODE_RANK,
    NODES_PANEL,
    OUT,
    RAY_ADDRESS,
    RUN_TOKEN,
    RUNTIME_ENV,
    USER_CODE,
    VERBOSE,
    WAIT,
    app,
    check_probes,
    count_as_user_code,
    limit,
    place_of,
    print_directory,
    print_of_node,
    stall,
)
from nsadiag.cli.shared import patience as seconds_of_patience
from nsadiag.deadlines import programs
from nsadiag.errors import NsadiagError, UsageError
from nsadiag.printing import note

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
            said = error.message if isinstance(error, NsadiagError) else repr(error)
            note(f"nsadiag: no verdict is shown: {said}")
            if isinstance(error, NsadiagError) and error.hint:
                note(f"hint: {error.hint}")
        raise typer.Exit(code) from None


Timeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Stop the job after this long, whatever it does; 0: never. Units: 90s, 10m, 2h",
        parser=limit,
        rich_help_panel="Hangs",
    ),
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
        help="stop: stop a job that hangs; stop-proven: only if the hang is proven; leave: stop nothing",
        rich_help_panel="Hangs",
    ),
]
Patience = Annotated[
    str,
    typer.Option(
        envvar="NSADIAG_PATIENCE",
        metavar="SECONDS",
        help="Treat a suspected hang as a hang after this much silence, or auto: ten times the longest pause, at least two minutes",
        rich_help_panel="Hangs",
    ),
]
RestartOn = Annotated[
    str | None,
    typer.Option(
        "--restart-on",
        metavar="retry=N",
        help="Start the job again, at most N times, after a verdict whose action is retry",
        rich_help_panel="Hangs",
    ),
]
Probes = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="What to record: light, full, none, or names separated by commas (nsadiag list)",
        autocompletion=completion.probes,
        rich_help_panel="Recording",
    ),
]
Notify = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TARGET",
        help="Webhook (https://...) or command to notify of a suspected hang and of the verdict; may be repeated",
    ),
]
Metrics = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep steps, rates, silences and waits of each rank in this file, as OpenMetrics text",
    ),
]
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the verdict")]
Passthrough = Annotated[bool, typer.Option("--passthrough", help="Exit with the job's own exit code")]
WithLocals = Annotated[
    bool,
    typer.Option(
        "--locals",
        help="Record the values of local variables in stacks; they may hold secrets",
        rich_help_panel="Recording",
    ),
]
CudaCore = Annotated[
    bool,
    typer.Option(
        "--cuda-core",
        help="Dump the GPU state, without its memory, before a hung job is stopped",
        rich_help_panel="Recording",
    ),
]
Ring = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where recordings are kept while the job runs: disk, memory (/dev/shm), or auto: memory if --out is on a network file system",
        rich_help_panel="Recording",
    ),
]
DieWithMe = Annotated[
    bool,
    typer.Option("--die-with-me", help="If nsadiag is killed, stop the job too; by default it continues"),
]
LogLimit = Annotated[
    float,
    typer.Option(
        metavar="MIB",
        help="Limit each log to this size, keeping its first and last half; 0: no limit",
        min=0,
        rich_help_panel="Recording",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="With --nnodes: static (this line on each node), or ray, which starts it on nodes of its cluster",
        rich_help_panel=NODES_PANEL,
    ),
]


def _check_option(context: typer.Context) -> None:
    """Raises UsageError where what should be the job begins as an option: one that is not there, or misspelt."""
    if context.args and context.args[0].startswith("-"):
        option, known = context.args[0].partition("=")[0], options_of(context.command)
        if option in known:
            raise UsageError(
                f"{option} stands where the job's command is to begin",
                "options of nsadiag go before --: nsadiag run [OPTIONS] -- CMD...",
            )
        lists = "nsadiag run --help lists them; the job itself goes behind --"
        raise UsageError(*no_such_option(option, known, lists))


@app.command(
    short_help="Run a launcher line, watch it, and give the verdict",
    options_metavar="[OPTIONS] -- CMD...",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: nsadiag run -- torchrun --nproc-per-node 8 train.py",
)
def run(
    context: typer.Context,
    out: Annotated[Path | None, OUT] = None,
    timeout: Timeout = 0.0,
    stall_after: StallAfter = "auto",
    patience: Patience = "auto",
    on_hang: OnHang = "stop",
    restart_on: RestartOn = None,
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
    engine: Engine = "static",
    address: Annotated[str | None, RAY_ADDRESS] = None,
    runtime_env: Annotated[Path | None, RUNTIME_ENV] = None,
    gpus_per_node: Annotated[int | None, GPUS_PER_NODE] = None,
    nnodes: Annotated[int | None, NNODES] = None,
    node_rank: Annotated[int | None, NODE_RANK] = None,
    master_addr: Annotated[str | None, MASTER_ADDR] = None,
    master_port: Annotated[int | None, MASTER_PORT] = None,
    local_addr: Annotated[str | None, LOCAL_ADDR] = None,
    run_token: Annotated[str | None, RUN_TOKEN] = None,
    wait: Annotated[float, WAIT] = 300.0,
    force: Annotated[bool, FORCE] = False,
    silent: Silent = False,
    verbose: Annotated[bool, VERBOSE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run any launcher line unchanged, watch it, and give a verdict. A healthy job exits with 0, a finding with 1.

    Every option can be set in NSADIAG_<OPTION>, or in [tool.nsadiag.run] of pyproject.toml.
    """
    from nsadiag.commands.run import RunRequest

    _check_option(context)
    count_as_user_code(user_code)
    by_hand = (node_rank, master_addr, master_port, local_addr, run_token)
    cluster: dict[str, Any] = {"address": address, "runtime_env": runtime_env, "gpus_per_node": gpus_per_node}
    on_ray = _is_on_ray(engine, by_hand, cluster)
    place = None if on_ray else place_of(nnodes, *by_hand, wait)
    _check_choices(on_hang, ring)
    check_probes(probes)
    request = RunRequest(
        command=list(context.args), out=out, timeout_s=timeout, stall_after_s=stall(stall_after),
        patience_s=seconds_of_patience(patience), on_hang=on_hang, probes=probes, notify=tuple(notify or ()),  # type: ignore[arg-type]
        metrics=metrics, passthrough=passthrough, with_locals=with_locals, cuda_core=cuda_core, ring=ring,  # type: ignore[arg-type]
        die_with_me=die_with_me, log_limit_mib=log_limit, force=force, silent=silent, quiet_stdout=as_json,
    )  # fmt: skip
    restarts = _restarts(restart_on, alone=place is None and not on_ray)
    if on_ray:
        _run_on_ray(request, nnodes or 1, wait, as_json=as_json, verbose=verbose, **cluster)
    _run(request, place, restarts, as_json=as_json, verbose=verbose)


def _run_on_ray(
    request: RunRequest,
    nnodes: int,
    wait: float,
    *,
    runtime_env: Path | None,
    as_json: bool,
    verbose: bool,
    **cluster: Any,
) -> NoReturn:
    from nsadiag.commands.batch.options import runtime_env_in
    from nsadiag.commands.batch.run_on_ray import RayOptions, run_on_ray

    env = runtime_env_in(runtime_env) if runtime_env else None
    options = RayOptions(nnodes=nnodes, runtime_env=env, wait_s=wait, **cluster)
    directory, code = run_on_ray(request, options)
    print_directory(directory, as_json=as_json, verbose=verbose, is_new=True)
    raise typer.Exit(code)


def _is_on_ray(engine: str, by_hand: Sequence[object], cluster: Mapping[str, object]) -> bool:
    """Raises UsageError for another engine's name, and for options that do not go with it."""
    if engine not in ("static", "ray"):
        raise UsageError(
            f"--engine is {engine!r}",
            "a launcher line runs on static nodes or on ray; cells of a matrix elsewhere too",
        )
    if engine == "ray" and any(value is not None for value in by_hand):
        raise UsageError("--engine ray starts each node by itself", "leave --node-rank and --master-addr out")
    given = next((name for name, value in cluster.items() if value is not None), None)
    if engine == "static" and given:
        raise UsageError(
            f"--{given.replace('_', '-')} is for another engine", "add --engine ray, or leave it out"
        )
    return engine == "ray"


def _check_choices(on_hang: str, ring: str) -> None:
    if on_hang not in ("stop", "stop-proven", "leave"):
        raise UsageError(f"--on-hang is {on_hang!r}", "choose stop, stop-proven or leave")
    if ring not in ("auto", "disk", "memory"):
        raise UsageError(f"--ring is {ring!r}", "choose auto, disk or memory")


def _restarts(restart_on: str | None, *, alone: bool) -> int:
    from nsadiag.commands.experiments.restart import restarts_of

    if restart_on is not None and not alone:
        raise UsageError("--restart-on on several nodes", "it restarts jobs of one machine; leave it out")
    return 0 if restart_on is None else restarts_of(restart_on)


def _run(request: RunRequest, place: Place | None, restarts: int, *, as_json: bool, verbose: bool) -> None:
    if place is None:
        from nsadiag.commands.experiments.restart import run_again

        with interrupts.held_off():
            result = run_again(request, restarts)
            with _last_word(result.exit_code if request.passthrough else None), interrupts.skippable():
                if result.failure is not None:
                    raise result.failure
                print_directory(result.directory, as_json=as_json, is_new=True, verbose=verbose)
            programs.end_running()
            interrupts.end_at_once(result.exit_code)
        raise typer.Exit(result.exit_code)
    from nsadiag.commands.run_on_nodes import run_on_nodes

    print_of_node(run_on_nodes(request, place), as_json=as_json)
