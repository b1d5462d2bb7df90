"""`nsadiag matrix`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsadiag.cli.shared import (
    FORCE,
    GPUS_PER_NODE,
    JSON,
    LOCAL_ADDR,
    MASTER_ADDR,
    MASTER_PORT,
    NNODES,
    NODE_RANK,
    OUT,
    RAY_ADDRESS,
    RUN_TOKEN,
    RUNTIME_ENV,
    SCHEDULERS,
    USER_CODE,
    WAIT,
    app,
    check_probes,
    console,
    count_as_user_code,
    place_of,
    print_directory,
    print_of_node,
)
from nsadiag.errors import UsageError
from nsadiag.printing import show

if TYPE_CHECKING:
    from nsadiag.cluster.place import Place
    from nsadiag.commands.matrix.run import MatrixRequest
    from nsadiag.spec import Cell, Matrix

# Engines that run cells where nsadiag runs, without a scheduler.
ON_NODES = ("local", "static")
KUBERNETES = "Kubernetes"
OF_PODS = ("manifest", "image", "claim")


Spec = Annotated[str, typer.Argument(metavar="SPEC", help="YAML file, or the name of a built-in matrix")]
Select = Annotated[
    str | None,
    typer.Option("-k", metavar="EXPR", help="Only cells whose id matches: words with and, or, not"),
]
Repeat = Annotated[
    int | None, typer.Option(metavar="N", help="Number of runs of each cell  [default: the spec's]", min=1)
]
Strategy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="all: every combination; pairwise: few cells that cover every pair of settings; hypotheses: what claims need",
    ),
]
Strength = Annotated[
    int | None, typer.Option(metavar="N", help="Interaction strength of pairwise  [default: 2]", min=1)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print each cell's command, and run nothing")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the matrix in --out, keeping finished cells")
]
Slots = Annotated[
    str,
    typer.Option(
        metavar="N",
        help="Number of cells to run at once, or auto: as many as cores and GPUs allow, if that saves time",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Where cells run: local, static (with --nnodes), slurm, ray, kubernetes (--dry-run alone), or one that another package adds",
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(metavar="N", help="Maximum number of nodes per cell", min=1, rich_help_panel=SCHEDULERS),
]
Partition = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Slurm: the partition to submit to", rich_help_panel=SCHEDULERS),
]
Account = Annotated[
    str | None, typer.Option(metavar="NAME", help="Slurm: the account to charge", rich_help_panel=SCHEDULERS)
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",  # some versions of typer take a metavar of that name for it
        metavar="TIME",
        help="Time limit of a cell's job  [default: derived from timeout_s]",
        rich_help_panel=SCHEDULERS,
    ),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Any other option of sbatch; may be repeated", rich_help_panel=SCHEDULERS
    ),
]
Manifest = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="trainjob (the default), jobset or rayjob", rich_help_panel=KUBERNETES),
]
Image = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Image with nsadiag, torch and the script", rich_help_panel=KUBERNETES),
]
Claim = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Volume claim that all pods mount, for the results", rich_help_panel=KUBERNETES
    ),
]


@app.command(
    short_help="Run one job under many settings, and compare",
    epilog="Example: nsadiag matrix -k 'layers=1 and not fsdp2'",
)
def matrix(
    spec: Spec = "nsa-quick",
    out: Annotated[Path | None, OUT] = None,
    select: Select = None,
    repeat: Repeat = None,
    strategy: Strategy = None,
    strength: Strength = None,
    dry_run: DryRun = False,
    resume: Resume = False,
    slots: Slots = "auto",
    engine: Engine = "local",
    nodes: Nodes = None,
    partition: Partition = None,
    account: Account = None,
    gpus_per_node: Annotated[int | None, GPUS_PER_NODE] = None,
    time: Time = None,
    slurm: Slurm = None,
    address: Annotated[str | None, RAY_ADDRESS] = None,
    runtime_env: Annotated[Path | None, RUNTIME_ENV] = None,
    manifest: Manifest = None,
    image: Image = None,
    claim: Claim = None,
    user_code: Annotated[str | None, USER_CODE] = None,
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

    count_as_user_code(user_code)
    place = place_of(nnodes, node_rank, master_addr, master_port, local_addr, run_token, wait)
    engine = _checked_static(engine, place)
    asked: dict[str, Any] = {
        "nodes": nodes, "partition": partition, "account": account, "gpus_per_node": gpus_per_node, "time": time, "slurm": slurm,
        "address": address, "runtime_env": runtime_env, "manifest": manifest, "image": image, "claim": claim,
    }  # fmt: skip
    _check_engine(engine, asked)
    loaded = _loaded(spec)
    every_cell = loaded.cells(repeat, specs.checked_strategy(strategy), strength)
    cells = specs.select(every_cell, select) if select else every_cell
    if dry_run and engine in (*ON_NODES, "kubernetes"):
        chosen = {"-k": select, "--repeat": repeat, "--strategy": strategy, "--strength": strength}
        if engine == "kubernetes":
            return _print_manifests(loaded, chosen, as_json=as_json, **asked)
        return _print_cells(cells, nnodes=place.nnodes if place else 1, as_json=as_json)
    from nsadiag.commands.matrix.run import MatrixRequest

    request = MatrixRequest(
        matrix=loaded, cells=cells, every_cell=every_cell, source=spec, out=out, resume=resume, force=force,
        slots=_slots(slots), engine=engine,
    )  # fmt: skip
    return _run(request, place, asked, dry_run=dry_run, as_json=as_json)


def _loaded(spec: str) -> Matrix:
    from nsadiag import spec as specs

    loaded = specs.load_matrix(specs.find_spec(spec))
    check_probes(loaded.probes)
    _check_criteria(loaded)
    return loaded


def _run(
    request: MatrixRequest, place: Place | None, asked: dict[str, Any], *, dry_run: bool, as_json: bool
) -> None:
    """Run the cells here, on static nodes or through a scheduler, whose options are `asked`."""
    from nsadiag.commands.matrix.run import run_matrix
    from nsadiag.reports.terminal.live import matrix_progress

    progress = matrix_progress(console(stderr=True))
    if place is not None:
        from nsadiag.commands.matrix.on_nodes import matrix_on_nodes

        print_of_node(matrix_on_nodes(request, place, progress), as_json=as_json)
    if request.engine != "local":
        from nsadiag.commands.batch import options as batch_options
        from nsadiag.commands.batch import submission
        from nsadiag.engines.registry import batch_engine

        more = asked.pop("slurm") or []
        asked = {name: value for name, value in asked.items() if name not in OF_PODS}
        options = batch_options.parsed(
            name=request.matrix.name, at_once=request.slots, more=more, dry_run=dry_run, **asked
        )
        scheduler = batch_engine(request.engine, options)
        batch_options.check_cells(request.cells, options)
        if dry_run:
            text = submission.plan(request, scheduler, options).rstrip()
            show(json.dumps({"engine": request.engine, "plan": text}, indent=1) if as_json else text)
            return
        request = submission.through(request, scheduler, options)
    result = run_matrix(request, progress)
    print_directory(result.directory, as_json=as_json, is_new=True)
    raise typer.Exit(result.exit_code)


def _slots(text: str) -> int | None:
    if text == "auto":
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"--slots is {text!r}", "give a number from 1 on, or auto")
    return int(text)


def _check_criteria(matrix: Matrix) -> None:
    """The outcomes and classes that hypotheses name are known ones."""
    from nsadiag.analysis.rules.registry import CLASSES
    from nsadiag.spec import words_named
    from nsadiag.spec.strict import nearest

    known = ["hung", "crashed", "slow", "wrong", *CLASSES]  # the other outcomes are classes as well
    for hypothesis in matrix.hypotheses:
        for word in words_named(hypothesis):
            if word not in known:
                raise UsageError(
                    f"hypothesis {hypothesis.claim!r}: no outcome or class is called {word!r}",
                    nearest(word, known),
                )


def _checked_static(engine: str, place: Place | None) -> str:
    """The engine, which --nnodes makes static. Raises UsageError where the two do not go together."""
    if place is not None and engine == "local":
        return "static"
    if engine == "static" and place is None:
        raise UsageError(
            "--engine static needs --nnodes, --node-rank and --master-addr",
            "nsadiag matrix SPEC --nnodes 2 --node-rank 0 --master-addr HOST, the same on each node but for --node-rank",
        )
    if place is not None and engine != "static":
        raise UsageError(f"--nnodes is for --engine static, not for {engine}", "leave one of the two out")
    return engine


def _check_engine(engine: str, options: Mapping[str, Any]) -> None:
    """Raises UsageError if there is no such engine, or if it is given what it has no use for."""
    if engine != "kubernetes" and (given := next((name for name in OF_PODS if options[name]), None)):
        raise UsageError(f"--{given} is for another engine", "add --engine kubernetes, or leave it out")
    if engine in ON_NODES:
        given = next((name for name, value in options.items() if value), None)
        if given:
            raise UsageError(
                f"--{given.replace('_', '-')} is for another engine",
                "add --engine slurm or ray, or leave it out",
            )
        return
    from nsadiag.engines.registry import check_engine

    check_engine(engine)


def _print_manifests(
    loaded: Matrix,
    chosen: dict[str, Any],
    *,
    as_json: bool,
    nodes: int | None,
    gpus_per_node: int | None,
    manifest: str | None,
    image: str | None,
    claim: str | None,
    **others: Any,
) -> None:
    from nsadiag.commands.batch.kubernetes import Deployment, manifests

    if given := next((name for name, value in others.items() if value), None):
        raise UsageError(
            f"--{given.replace('_', '-')} is for another engine, not for kubernetes", "leave it out"
        )
    selection = [word for flag, value in chosen.items() if value is not None for word in (flag, str(value))]
    deployment = Deployment(
        matrix=loaded,
        selection=selection,
        nodes=nodes or 1,
        gpus_per_node=gpus_per_node,
        image=image,
        claim=claim,
    )
    text = manifests(manifest or "trainjob", deployment)
    show(json.dumps({"engine": "kubernetes", "plan": text.rstrip()}, indent=1) if as_json else text, end="")


def _print_cells(cells: list[Cell], *, nnodes: int, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "id": cell.id,
                "factors": cell.factors,
                "world_size": cell.world_size,
                "env": cell.env,
                "command": _command(cell, nnodes),
            }
            for cell in cells
        ]
        show(json.dumps(rows, indent=1))
        return
    for cell in cells:
        variables = [f"{name}={value}" for name, value in cell.env.items()]
        show(f"{cell.id}\n    {shlex.join([*variables, *_command(cell, nnodes)])}")


def _command(cell: Cell, nnodes: int) -> list[str]:
    """The command of node 0, on one node or on several."""
    words = cell.command()
    if nnodes == 1 or cell.world_size == 1 or "--standalone" not in words:
        return words
    from nsadiag.engines.static import spread

    used = [count for count in spread(cell.world_size, nnodes) if count]
    at = words.index("--standalone")
    meeting = f"--nnodes {len(used)} --node-rank 0 --master-addr HOST --master-port PORT"
    words = [*words[:at], *meeting.split(), *words[at + 1 :]]
    words[words.index("--nproc-per-node") + 1] = str(used[0])
    return words
