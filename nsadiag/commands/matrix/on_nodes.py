"""`nsadiag matrix --nnodes N`: node 0 goes through the cells, and every node runs its ranks of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.cluster.join import Crew
from nsadiag.cluster.place import Place
from nsadiag.commands import nodes, output
from nsadiag.commands.matrix.cells import Outcome, directory_of, judged_now
from nsadiag.commands.matrix.probes import probes_of
from nsadiag.commands.matrix.run import MatrixRequest, MatrixResult, MatrixState, launchers, run_matrix
from nsadiag.engines.local import run_warm
from nsadiag.engines.pool import LauncherPool
from nsadiag.engines.static import Lead, Part, spread
from nsadiag.engines.static_member import Member
from nsadiag.errors import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, UsageError
from nsadiag.evidence.layout import RunDir, make_private_dir
from nsadiag.evidence.secrets.masking import hide
from nsadiag.reports.terminal.live import MatrixProgress
from nsadiag.spec import Cell, Matrix


def task_of(matrix: Matrix, cells: Sequence[Cell]) -> Any:
    """Everything that has to be the same on all nodes; node 0 alone decides which cells are chosen."""
    return ["matrix", matrix.model_dump(mode="json"), [cell.id for cell in cells]]


def matrix_on_nodes(
    request: MatrixRequest, place: Place, progress: MatrixProgress
) -> MatrixResult | nodes.NodeResult:
    """The part of this node. Raises NsadiagError before anything was started."""
    if request.slots is not None:
        raise UsageError("--slots is for one machine", "on several nodes cells run one after the other")
    task = task_of(request.matrix, request.every_cell)
    if not place.is_first:
        return _take_part(request, place, task)
    results: list[MatrixResult] = []

    def act() -> tuple[int, str]:
        results.append(_lead(request, crew, progress))
        done = sum(result.verdict is not None for result in results[0].cells)
        return results[0].exit_code, f"{done} of {len(results[0].cells)} cells are done"

    crew = nodes.gathered(place, task)
    nodes.led(act, crew)
    return results[0]


def _lead(request: MatrixRequest, crew: Crew, progress: MatrixProgress) -> MatrixResult:
    gone: dict[int, str] = {}

    def runner(state: MatrixState) -> None:
        lead = Lead(crew, state.directory, nodes.crowd())
        lead.gone = gone
        lead.open(kind="matrix")
        pool = launchers(state)
        try:
            _run_cells(state, lead, pool)
        finally:
            pool.close()

    result = run_matrix(replace(request, runner=runner), progress)
    return replace(result, exit_code=EXIT_ENVIRONMENT) if gone else result


def _run_cells(state: MatrixState, lead: Lead, pool: LauncherPool) -> None:
    gpus = sum(hello.gpus for hello in lead.crew.hellos.values())
    for result in state.results:
        if result.state != "done" and result.cell.gpus > gpus:
            result.state = "skipped"
    for result in state.begin():
        interrupts.check()
        state.before(result, False)
        part = announced(lead, state.matrix, result.cell, state.options(result))
        outcome = run_part_of_node_0(
            lead, part, pool, directory_of(state.directory, result.cell), result.cell
        )
        state.after(result, outcome, 0.0)
        if lead.gone:
            state.progress.note(f"{'; '.join(lead.gone.values())}: --resume continues from here")
            return


def announced(lead: Lead, matrix: Matrix, cell: Cell, options: WatchOptions) -> Part:
    """All nodes start their ranks of the cell."""
    counts = spread(cell.world_size, len(lead.crew.hellos))
    at = f"cells/{cell.id}"
    return lead.announce(at=at, name=cell.id, counts=counts, probes=probes_of(matrix), options=options)


def run_part_of_node_0(lead: Lead, part: Part, pool: LauncherPool, directory: RunDir, cell: Cell) -> Outcome:
    """Runs it to its end on all nodes, and judges it. Raises KeyboardInterrupt where that came first."""
    started = time.monotonic()
    launcher = pool.take(cell.env)
    try:
        run_warm(
            launcher,
            cell.argv,
            directory,
            part.options,
            world_size=part.counts[0],
            probes=part.probes,
            among=part.among(0),
            make_watch=lead.make_watch(part, directory),
        )
    finally:
        pool.give(launcher)
        lead.finish(directory)
    return judged_now(directory, started)


def _take_part(request: MatrixRequest, place: Place, task: Any) -> nodes.NodeResult:
    for cell in request.every_cell:
        hide(cell.env, cell.command())
    member = nodes.member(place, task, out=request.out, force=request.force or request.resume)
    try:
        if not member.shared:
            line = ["nsadiag", "matrix", request.source]
            output.write_run(
                member.root, kind="matrix", name=request.matrix.name, command=line, started_at=output.now()
            )
        pool = LauncherPool(_log(member.root.path, member.name), preload=tuple(request.matrix.preload))
        try:
            code = take_parts(member, request.every_cell, pool)
        finally:
            pool.close()
        return nodes.result_of(member, code)
    finally:
        member.close()


def take_parts(member: Member, cells: Sequence[Cell], pool: LauncherPool) -> int | None:
    """This node's ranks of each cell that node 0 announces; the exit code, where it is not node 0's."""
    by_id = {cell.id: cell for cell in cells}
    for part in member.parts():
        try:
            _run_part(member, part, pool, by_id[part.name])
        except KeyboardInterrupt:
            member.finish(part, member.directory(part))
            return EXIT_INTERRUPTED
        except Exception as error:
            member.give_up(part, error)
            raise
        member.finish(part, member.directory(part))
    return None


def _log(root: Path, name: str) -> Path:
    return make_private_dir(RunDir(path=root).node(name)) / "launcher.log"


def _run_part(member: Member, part: Part, pool: LauncherPool, cell: Cell) -> None:
    rank, directory = member.seat.node_rank, member.directory(part)
    launcher = pool.take(cell.env)
    try:
        run_warm(
            launcher,
            cell.argv,
            directory,
            part.options,
            world_size=part.counts[rank],
            probes=part.probes,
            among=part.among(rank),
            make_watch=member.make_watch(part, directory),
        )
    finally:
        pool.give(launcher)
