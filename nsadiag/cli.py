"""The command line: parse, call one function, print. Heavy rooms are imported inside the commands."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsadiag.agent import interrupts
from nsadiag.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE, MachineError, NsadiagError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from nsadiag.cluster.place import Place
    from nsadiag.commands.matrix import MatrixResult
    from nsadiag.commands.nodes import NodeResult
    from nsadiag.commands.run import RunResult
    from nsadiag.reports import Report
    from nsadiag.spec import Matrix

TOKEN_VARIABLE = "NSADIAG_RUN_TOKEN"
# Engines that run cells where nsadiag runs, without a scheduler.
ON_NODES = ("local", "static")
app = typer.Typer(
    name="nsadiag",
    help="Say who, where and why a distributed PyTorch job hangs, crawls, crashes or trains wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich's takes as long to import as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)

OUT = typer.Option("--out", help="Directory to write to  [default: artifacts/<time>-<name>]")
JSON = typer.Option("--json", help="Print one JSON document on stdout, and nothing else")
FORCE = typer.Option("--force", help="Replace what an earlier run left in --out")
# Spelled as torchrun's, which takes both dashes and underscores.
NNODES = typer.Option("--nnodes", help="The same command runs on so many nodes", min=1)
NODE_RANK = typer.Option("--node-rank", "--node_rank", help="The number of this one, from 0")
MASTER_ADDR = typer.Option(
    "--master-addr", "--master_addr", help="Name or address of node 0, as the others reach it"
)
MASTER_PORT = typer.Option(
    "--master-port", "--master_port", help="Where agents meet  [default: 29450]", min=1, max=65535
)
LOCAL_ADDR = typer.Option(
    "--local-addr", "--local_addr", help="Node 0: listen on this address, or interface, alone"
)
RUN_TOKEN = typer.Option(
    "--run-token", help="What agents know each other by; better given as NSADIAG_RUN_TOKEN"
)
WAIT = typer.Option("--wait", help="Seconds until all nodes must have come", min=1)


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def _print(directory: Path, *, as_json: bool) -> None:
    from nsadiag.reports import load_report

    _print_report(load_report(directory), as_json=as_json)


def _print_report(report: Report, *, as_json: bool) -> None:
    from nsadiag.reports import REPORTERS, print_report

    if as_json:
        print(REPORTERS["json"](report))
    else:
        print_report(report, _console())


def _stall(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        seconds = float(text)
    except ValueError:
        raise UsageError(f"--stall-after is {text!r}", "give seconds, or auto") from None
    if not seconds > 0:  # not a number is not positive either
        raise UsageError(f"--stall-after is {text}", "give a positive number of seconds, or auto")
    return seconds


def _slots(text: str) -> int | None:
    if text == "auto":
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"--slots is {text!r}", "give a number from 1 on, or auto")
    return int(text)


@app.command(
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

    place = _place(nnodes, node_rank, master_addr, master_port, local_addr, run_token, wait)
    if on_hang not in ("stop", "leave"):
        raise UsageError(f"--on-hang is {on_hang!r}", "choose stop or leave")
    if ring not in ("auto", "disk", "memory"):
        raise UsageError(f"--ring is {ring!r}", "choose auto, disk or memory")
    _check_probes(probes)
    request = RunRequest(
        command=list(context.args),
        out=out,
        timeout_s=timeout,
        stall_after_s=_stall(stall_after),
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
        _print(result.directory, as_json=as_json)
        raise typer.Exit(result.exit_code)
    from nsadiag.commands.run_on_nodes import run_on_nodes

    _print_of_node(run_on_nodes(request, place), as_json=as_json)


def _place(
    nnodes: int | None,
    node_rank: int | None,
    master_addr: str | None,
    master_port: int | None,
    local_addr: str | None,
    run_token: str | None,
    wait: float,
) -> Place | None:
    """Where this node's agent meets the others; None where it is alone."""
    given = nnodes, node_rank, master_addr, master_port, local_addr, run_token
    if nnodes == 1 or (all(value is None for value in given) and TOKEN_VARIABLE not in os.environ):
        return None
    from nsadiag.cluster.place import checked_place

    return checked_place(
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        local_addr=local_addr,
        token=run_token,
        wait_s=wait,
    )


def _print_of_node(result: RunResult | MatrixResult | NodeResult, *, as_json: bool) -> None:
    """Node 0 has the whole to show, the others what they saw."""
    from nsadiag.commands.nodes import NodeResult

    if not isinstance(result, NodeResult):
        _print(result.directory, as_json=as_json)
    elif as_json:
        print(json.dumps(result.to_json(), indent=1))
    else:
        print(result.shown())
    raise typer.Exit(result.exit_code)


def _check_probes(spec: str) -> None:
    from nsadiag.evidence.probes import PROBE_NAMES, unknown_in

    unknown = unknown_in(spec)
    if unknown:
        raise UsageError(
            f"no such probe: {unknown[0]}", f"choose light, full, none, or from {', '.join(PROBE_NAMES)}"
        )


def _check_criteria(matrix: Matrix) -> None:
    """The outcomes and classes that hypotheses name are known ones."""
    from nsadiag.analysis.classes import CLASSES
    from nsadiag.spec import words_named
    from nsadiag.spec.strict import nearest

    known = ["hung", "crashed", "slow", "wrong", *CLASSES]
    for hypothesis in matrix.hypotheses:
        for word in words_named(hypothesis):
            if word not in known:
                raise UsageError(
                    f"hypothesis {hypothesis.claim!r}: no outcome or class is called {word!r}",
                    nearest(word, known),
                )


@app.command(epilog="Example: nsadiag matrix -k 'layers=1 and not fsdp2'")
def matrix(
    spec: Annotated[str, typer.Argument(help="YAML file, or the name of a built-in matrix")] = "nsa-quick",
    out: Annotated[Path | None, OUT] = None,
    select: Annotated[
        str | None, typer.Option("-k", help="Only cells whose id matches: words with and, or, not")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(help="Run each cell this often  [default: as the spec says]", min=1)
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="all: every combination; pairwise: few, where any two settings meet; hypotheses: what they need"
        ),
    ] = None,
    strength: Annotated[
        int | None, typer.Option(help="Of pairwise: the settings of so many factors meet", min=1)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print each cell's command and run nothing")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the matrix in --out; done cells stay")
    ] = False,
    slots: Annotated[
        str,
        typer.Option(
            help="Cells at once, or auto: as many as there are cores and GPUs for, where that saves time"
        ),
    ] = "auto",
    engine: Annotated[
        str,
        typer.Option(
            help="Where cells run: local, static (with --nnodes), slurm, or one that another package adds"
        ),
    ] = "local",
    nodes: Annotated[int | None, typer.Option(help="Slurm: nodes of a cell, at most", min=1)] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm: the partition to submit to")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm: the account that pays")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="Slurm: GPUs that a cell gets on each node", min=1)
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Slurm: limit of a cell's job  [default: as its timeout_s needs]")
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Any other option of sbatch; may be repeated"),
    ] = None,
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
    """Run a matrix of experiments and report on the whole; without SPEC, the built-in NSA quick matrix."""
    from nsadiag import spec as specs

    place = _place(nnodes, node_rank, master_addr, master_port, local_addr, run_token, wait)
    if place is not None and engine == "local":
        engine = "static"
    _check_static(engine, place)
    _check_engine(
        engine,
        nodes=nodes,
        partition=partition,
        account=account,
        gpus_per_node=gpus_per_node,
        time=time,
        slurm=slurm,
    )
    most = _slots(slots)
    loaded = specs.load_matrix(specs.find_spec(spec))
    _check_probes(loaded.probes)
    _check_criteria(loaded)
    every_cell = loaded.cells(repeat, specs.checked_strategy(strategy), strength)
    cells = specs.select(every_cell, select) if select else every_cell
    if dry_run and engine in ON_NODES:
        _print_cells(cells, nnodes=place.nnodes if place else 1, as_json=as_json)
        return
    from nsadiag.commands.matrix import MatrixRequest, run_matrix
    from nsadiag.reports.live import matrix_progress

    request = MatrixRequest(
        matrix=loaded,
        cells=cells,
        every_cell=every_cell,
        source=spec,
        out=out,
        resume=resume,
        force=force,
        slots=most,
        engine=engine,
    )
    progress = matrix_progress(_console(stderr=True))
    if place is not None:
        from nsadiag.commands.matrix_on_nodes import matrix_on_nodes

        _print_of_node(matrix_on_nodes(request, place, progress), as_json=as_json)
    if engine != "local":
        from nsadiag.commands import batch_options, batched
        from nsadiag.engines.registry import batch_engine

        options = batch_options.parsed(
            name=loaded.name,
            nodes=nodes,
            partition=partition,
            account=account,
            gpus_per_node=gpus_per_node,
            time=time,
            at_once=most,
            more=slurm or [],
        )
        scheduler = batch_engine(engine, options)
        batch_options.check_cells(cells, options)
        if dry_run:
            text = batched.plan(request, scheduler, options).rstrip()
            print(json.dumps({"engine": engine, "plan": text}, indent=1) if as_json else text)
            return
        request = batched.through(request, scheduler, options)
    result = run_matrix(request, progress)
    _print(result.directory, as_json=as_json)
    raise typer.Exit(result.exit_code)


def _check_static(engine: str, place: Place | None) -> None:
    """Raises UsageError where the engine and --nnodes do not go together."""
    if engine == "static" and place is None:
        raise UsageError(
            "--engine static needs --nnodes, --node-rank and --master-addr",
            "nsadiag matrix SPEC --nnodes 2 --node-rank 0 --master-addr HOST, the same on each node but for --node-rank",
        )
    if place is not None and engine != "static":
        raise UsageError(f"--nnodes is for --engine static, not for {engine}", "leave one of the two out")


def _check_engine(engine: str, **options: Any) -> None:
    """Raises UsageError if there is no such engine, or if it is given what it has no use for."""
    if engine in ON_NODES:
        given = next((name for name, value in options.items() if value), None)
        if given:
            raise UsageError(
                f"--{given.replace('_', '-')} is for another engine", "add --engine slurm, or leave it out"
            )
        return
    from nsadiag.engines.registry import check_engine

    check_engine(engine)


def _print_cells(cells: list[Any], *, nnodes: int, as_json: bool) -> None:
    import shlex

    def command(cell: Any) -> list[str]:
        """What node 0 would start, on one node or on several."""
        words: list[str] = cell.command()
        if nnodes == 1 or cell.world_size == 1 or "--standalone" not in words:
            return words
        from nsadiag.engines.static import spread

        used = [count for count in spread(cell.world_size, nnodes) if count]
        at = words.index("--standalone")
        told = [
            "--nnodes",
            str(len(used)),
            "--node-rank",
            "0",
            "--master-addr",
            "HOST",
            "--master-port",
            "PORT",
        ]
        words = [*words[:at], *told, *words[at + 1 :]]
        words[words.index("--nproc-per-node") + 1] = str(used[0])
        return words

    if as_json:
        print(
            json.dumps(
                [
                    {
                        "id": c.id,
                        "factors": c.factors,
                        "world_size": c.world_size,
                        "env": c.env,
                        "command": command(c),
                    }
                    for c in cells
                ],
                indent=1,
            )
        )
        return
    for cell in cells:
        print(f"{cell.id}\n    {shlex.join([*(f'{k}={v}' for k, v in cell.env.items()), *command(cell)])}")


@app.command(
    options_metavar="[OPTIONS]",
    epilog="Example: nsadiag bisect nsa-quick --axis layers --from 1 --to 16 -k 'checkpointing=none and parallel=ddp'\n\n"
    "Example: nsadiag bisect --git v1.2..HEAD -- torchrun --standalone --nproc-per-node 2 train.py",
)
def bisect(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC | -- CMD...]", help="A matrix; with --git a launcher line"),
    ] = None,
    axis: Annotated[
        str | None, typer.Option(help="The axis to halve; needed where more than one has an order")
    ] = None,
    low: Annotated[int | None, typer.Option("--from", help="The first value, instead of the spec's")] = None,
    high: Annotated[int | None, typer.Option("--to", help="The last value, instead of the spec's")] = None,
    select: Annotated[
        str | None, typer.Option("-k", help="Fixes the other axes: only cells whose id matches")
    ] = None,
    git: Annotated[
        str | None,
        typer.Option("--git", metavar="GOOD..BAD", help="Along the commits of this checkout instead"),
    ] = None,
    repeat: Annotated[
        int, typer.Option(help="Run the points at the boundary this often; a failure may be flaky", min=1)
    ] = 3,
    timeout: Annotated[
        float | None,
        typer.Option(help="Hard limit of a run in seconds; 0: none  [default: the spec's, or 300]", min=0),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the points and their commands and run nothing")
    ] = False,
    out: Annotated[Path | None, OUT] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Find the value of an axis, or the commit, from which on a job fails; or say that cost just grows."""
    from nsadiag.commands import bisect as command
    from nsadiag.commands import points

    request = points.parsed(
        words or [],
        axis=axis,
        low=low,
        high=high,
        expression=select,
        span=git,
        timeout_s=timeout,
        repeats=repeat,
        out=out,
        force=force,
        line=("nsadiag", *sys.argv[1:]),
    )
    if dry_run:
        print(points.plan(request, as_json=as_json))
        return
    result = command.run_bisect(request)
    print(command.shown(result, as_json=as_json))
    raise typer.Exit(result.exit_code)


@app.command(epilog="Example: nsadiag shrink artifacts/20261120-101500-train --out repro/train")
def shrink(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CELL", help="A run's directory, or cells/ID of a matrix")
    ],
    budget: Annotated[
        float, typer.Option(help="Look for something smaller for so many seconds", min=1)
    ] = 150.0,
    slots: Annotated[
        int | None, typer.Option(help="Trials at once  [default: one for two cores, at least 2]", min=1)
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be cut down and what would stay, and run nothing"),
    ] = False,
    out: Annotated[Path | None, OUT] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Cut a failing run down to a short script that stands alone and fails in the same way."""
    from nsadiag.commands import shrink as command

    request = command.ShrinkRequest(
        path=path,
        budget_s=budget,
        slots=slots or command.most_slots(),
        out=out,
        force=force,
        line=("nsadiag", *sys.argv[1:]),
    )
    if dry_run:
        print(command.shown_plan(request, as_json=as_json))
        return
    result = command.run_shrink(request)
    print(command.shown(result, as_json=as_json))
    raise typer.Exit(result.exit_code)


@app.command(epilog="Example: nsadiag attach $(pgrep -f 'torchrun.*train.py')")
def attach(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PID... | slurm:JOBID]", help="Ranks, or the launcher above them; or a Slurm job"
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="A directory whose job nsadiag run has, or left running")
    ] = None,
    out: Annotated[Path | None, OUT] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Look at a job that is already running or stuck, judge it, and leave it as it was."""
    from nsadiag.commands.attach import AttachRequest, attach_once

    result = attach_once(AttachRequest(targets=targets or [], run=run, out=out, force=force))
    _print(result.directory, as_json=as_json)
    raise typer.Exit(result.exit_code)


@app.command(epilog="Example: nsadiag analyze /tmp/nccl_traces")
def analyze(
    path: Annotated[
        Path,
        typer.Argument(
            help="A run or matrix directory, or flight-recorder dumps, stacks and logs from elsewhere"
        ),
    ],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Judge evidence that is already on disk; needs no torch and no GPU."""
    from nsadiag.commands.analyze import analyze_path, is_matrix, is_ours
    from nsadiag.errors import EXIT_FINDING, EXIT_HEALTHY

    if is_matrix(path):
        from nsadiag.commands.rejudge import rejudge

        outcome = "healthy" if rejudge(path) else "finding"
        _print(path, as_json=as_json)
    elif is_ours(path):
        from nsadiag.analysis.verdict import judge_directory
        from nsadiag.reports import write_reports

        outcome = judge_directory(path).outcome
        write_reports(path)
        _print(path, as_json=as_json)
    else:
        report = analyze_path(path)
        _print_report(report, as_json=as_json)
        outcome = report.state
    raise typer.Exit(EXIT_HEALTHY if outcome == "healthy" else EXIT_FINDING)


@app.command(epilog="Example: nsadiag report artifacts/20261120-101500-train --format md")
def report(
    path: Annotated[Path, typer.Argument(help="A run or matrix directory")],
    format_: Annotated[
        str, typer.Option("--format", help="terminal, md, html, json, junit, issue, perfetto or speedscope")
    ] = "terminal",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Render what is on disk, to stdout."""
    from nsadiag.reports import REPORTERS, load_report
    from nsadiag.reports.experiments import is_experiment, render_experiment

    if is_experiment(path):
        print(render_experiment(path, "json" if as_json else format_), end="")
        return
    if format_ not in REPORTERS:
        raise UsageError(f"no such format: {format_}", f"choose from {', '.join(REPORTERS)}")
    if as_json or format_ == "terminal":
        _print(path, as_json=as_json)
    else:
        print(REPORTERS[format_](load_report(path)))


@app.command(epilog="Example: nsadiag diff artifacts/yesterday artifacts/today")
def diff(
    a: Annotated[Path, typer.Argument(help="A run, a cell of a matrix, or a rank: RUN/ranks/00000")],
    b: Annotated[Path, typer.Argument(help="What to compare it with")],
    everything: Annotated[bool, typer.Option("--all", help="Also show what agrees")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show two runs or two ranks side by side: environment, versions, settings, verdict, timing, parameters.

    Exit code 1 if anything differs but the timing.
    """
    from nsadiag.commands import diff as command

    rows = command.rows_of(a, b)
    if as_json:
        print(command.as_json(rows, a, b))
    else:
        command.show(rows, a, b, _console(), everything=everything)
    raise typer.Exit(command.exit_code(rows))


@app.command(epilog="Example: nsadiag top artifacts/20261120-101500-train")
def top(
    directory: Annotated[Path, typer.Argument(help="A run or matrix that is under way")],
    once: Annotated[bool, typer.Option("--once", help="One look, and no more")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show what every rank is doing while the job runs: step, rate, phase, line, last event. Nobody is paused for it."""
    from nsadiag.commands import top as command

    if as_json:
        print(command.as_json(command.look(directory)))
    else:
        command.follow(directory, _console(), once=once)


@app.command(epilog="Example: nsadiag demo rank_killed_sigkill")
def demo(
    fault: Annotated[
        str, typer.Argument(help="A script of repro/, or a class: nsadiag list --faults")
    ] = "local_lock_deadlock_dropped_record",
    out: Annotated[Path | None, OUT] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run a job that fails on purpose on this machine, and report on it, in under a minute."""
    from nsadiag.commands.demo import demo_request
    from nsadiag.commands.run import run_once

    result = run_once(demo_request(fault, out=out, force=force, quiet_stdout=as_json))
    _print(result.directory, as_json=as_json)
    raise typer.Exit(result.exit_code)


@app.command(epilog="Example: nsadiag doctor")
def doctor(
    python: Annotated[
        str | None, typer.Option(help="The Python that your jobs run with  [default: the first on PATH]")
    ] = None,
    pid: Annotated[
        int | None, typer.Option(help="Try a process that runs already, without a pause to it")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs would be written")] = Path("artifacts"),
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say what evidence could be collected here, what stops the rest, and the remedy."""
    from nsadiag.commands import doctor as command

    checks, tried = command.run_checks(python=python, out=out, pid=pid)
    if as_json:
        print(command.as_json(checks, tried))
    else:
        command.show(checks, tried, _console())
    raise typer.Exit(command.exit_code(checks))


@app.command("list", epilog="Example: nsadiag list --faults")
def list_(
    faults: Annotated[bool, typer.Option("--faults", help="The scripts that nsadiag demo can run")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List probes, captures, detectors, engines, reporters and classes, or the faults to try."""
    from nsadiag.commands import demo as command
    from nsadiag.commands.faults import faults as every_fault

    if as_json:
        known = {"faults": {f.name: f.to_json() for f in every_fault()}} if faults else command.parts()
        print(json.dumps(known, indent=1))
        return
    for line in command.fault_table() if faults else command.part_table():
        print(line)


def main() -> None:
    """Entry point: every failure ends in one line, a hint, and the documented exit code."""
    # A scheduler ends a job by SIGTERM: treat it as the Ctrl-C it stands for.
    interrupts.listen()
    try:
        code = app(standalone_mode=False)
        # Newer typers turn Ctrl-C into this code by themselves.
        if code == EXIT_INTERRUPTED:
            _interrupted()
        sys.exit(code if isinstance(code, int) else 0)
    except NsadiagError as error:
        _fail(error.message, error.hint, error.exit_code)
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except KeyboardInterrupt:
        _interrupted()
    except BrokenPipeError:
        sys.exit(EXIT_USAGE)
    except OSError as error:
        machine = MachineError(f"{error.strerror}: {error.filename}" if error.filename else str(error))
        _fail(machine.message, "is there room and permission under --out? (df -h, ls -ld)", machine.exit_code)
    except Exception as error:
        _fail_ourselves(error)


def _fail(message: str, hint: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(code)


def _fail_ourselves(error: Exception) -> None:
    if isinstance(error, typer.Abort):
        _interrupted()
    # Newer typers carry a click of their own, so its exceptions are known by what they can do.
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(format_message())
            sys.exit(EXIT_USAGE)
        _fail(format_message(), "nsadiag --help lists the commands and their options", EXIT_USAGE)
    import traceback

    traceback.print_exception(error)
    _fail(
        f"this is a fault of nsadiag: {error!r}", "please report it with the traceback above", EXIT_INTERNAL
    )


def _interrupted() -> None:
    _fail("interrupted", "what was written stays; a matrix goes on with --resume", EXIT_INTERRUPTED)
