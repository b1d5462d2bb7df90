"""`python -m nsadiag.commands.batch.node SPEC DIR FACTORS`: the agent that an engine starts on each node of one cell's job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import zlib
from pathlib import Path

from nsadiag.agent import interrupts
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.cluster.place import Place
from nsadiag.commands import nodes
from nsadiag.commands.matrix.cells import CellResult, Outcome, directory_of, note_done, run_cell
from nsadiag.commands.matrix.on_nodes import run_part_of_node_0, take_parts, task_of
from nsadiag.commands.matrix.probes import probes_of
from nsadiag.engines.batch import JOB_ID, MASTER_ADDR, NNODES, NODE_RANK
from nsadiag.engines.pool import LauncherPool
from nsadiag.engines.static import Lead, spread
from nsadiag.errors import EXIT_HEALTHY, EXIT_INTERRUPTED, MachineError, NsadiagError, UsageError
from nsadiag.evidence.layout import RunDir, make_private_dir, read_json, this_node
from nsadiag.evidence.secrets.masking import hide
from nsadiag.spec import Cell, Matrix, find_spec, load_matrix

# Jobs may share a node: each has a port of its own, as far as their numbers tell them apart.
FIRST_PORT, PORTS = 20_000, 12_000
KNOWN_S = 60.0  # from the job's start, until whoever submitted it has written down its id
KEPT = {"cell.json", "job.json"}


def command(spec: str, run: RunDir, cell: Cell, *, limit_s: float | None, token: Path) -> list[str]:
    """The command to run on each node of the cell's job.

    `limit_s` is of the job, as far as it is less than the cell's; `token` is the file with the run's, where there are several nodes.
    """
    about = json.dumps({"factors": cell.factors, "limit_s": limit_s, "token": str(token.resolve())})
    return [sys.executable, "-m", "nsadiag.commands.batch.node", spec, str(run.path.resolve()), about]


def main(spec: str, directory: str, about: str) -> int:
    """Runs the cell and leaves cell.json complete, which is the mark that it is done."""
    interrupts.listen()
    # Slurm's warning that the time is nearly up.
    signal.signal(signal.SIGUSR2, signal.getsignal(signal.SIGTERM))
    run, asked = RunDir(path=Path(directory)), json.loads(about)
    matrix = load_matrix(find_spec(spec))
    result = CellResult(cell=_cell(matrix, asked["factors"]))
    hide(result.cell.env, result.cell.command())
    if not _is_ours(directory_of(run, result.cell)):
        return EXIT_HEALTHY
    limits = [s for s in (result.cell.timeout_s, asked["limit_s"]) if s]
    options = WatchOptions(stall_after_s=matrix.stall_after_s, timeout_s=min(limits, default=0.0))
    nnodes = int(os.environ.get(NNODES, "1"))
    if nnodes == 1:
        outcome = _alone(run, matrix, result.cell, options)
    else:
        found = _with_others(run, matrix, result.cell, options, _place(nnodes, Path(asked["token"])))
        if isinstance(found, int):
            return found
        outcome = found
    note_done(run, result, outcome, beside=0.0)
    return EXIT_HEALTHY


def _alone(run: RunDir, matrix: Matrix, cell: Cell, options: WatchOptions) -> Outcome:
    directory = directory_of(run, cell)
    _clear(directory)
    pool = _launchers(directory, matrix)
    try:
        return run_cell(run, matrix, cell, pool.take(cell.env), options)
    finally:
        pool.close()


def _launchers(directory: RunDir, matrix: Matrix) -> LauncherPool:
    log = make_private_dir(directory.node(this_node())) / "launcher.log"
    return LauncherPool(log, preload=tuple(matrix.preload))


def _place(nnodes: int, token: Path) -> Place:
    port = FIRST_PORT + zlib.crc32(os.environ[JOB_ID].encode()) % PORTS
    return Place(
        nnodes=nnodes,
        node_rank=int(os.environ[NODE_RANK]),
        master_addr=os.environ[MASTER_ADDR],
        master_port=port,
        token=token.read_text(),
    )


def _with_others(
    run: RunDir, matrix: Matrix, cell: Cell, options: WatchOptions, place: Place
) -> Outcome | int:
    """The outcome on node 0; the exit code on every other node."""
    directory, task = directory_of(run, cell), task_of(matrix, [cell])
    if not place.is_first:
        member = nodes.member(place, task, out=None, force=False)
        try:
            code = take_parts(member, matrix, [cell])
            return member.exit_code if code is None else code
        finally:
            member.close()
    outcomes: list[Outcome] = []

    def act() -> tuple[int, str]:
        # The cell's directory is the root: other cells' jobs meet beside it at the same time.
        lead = Lead(crew, directory, nodes.crowd())
        lead.open(kind="matrix")
        counts = spread(cell.world_size, place.nnodes)
        part = lead.announce(at=".", name=cell.id, counts=counts, probes=probes_of(matrix), options=options)
        pool = _launchers(directory, matrix)
        try:
            outcomes.append(run_part_of_node_0(lead, part, pool, directory, cell))
        finally:
            pool.close()
        return EXIT_HEALTHY, outcomes[0].verdict.summary

    _clear(directory)
    crew = nodes.gathered(place, task)
    nodes.led(act, crew)
    return outcomes[0]


def _cell(matrix: Matrix, factors: dict[str, str]) -> Cell:
    number = factors.pop("repeat", None)
    if unknown := set(factors) ^ set(matrix.axes):
        raise UsageError(
            f"the spec has changed since the job was submitted: {sorted(unknown)[0]}",
            "submit the matrix again",
        )
    cell = matrix.cell(factors)
    return cell.repeated(int(number)) if number else cell


def _is_ours(cell: RunDir) -> bool:
    """Whether this job is the one that the cell was last given to: an earlier one must not write in between."""
    mine, deadline = os.environ.get(JOB_ID), time.monotonic() + KNOWN_S
    while (known := read_json(cell.path / "job.json", {}).get("id")) is None:
        interrupts.check()
        if time.monotonic() > deadline:
            raise MachineError(
                f"{cell.path}/job.json does not come",
                "is the run directory on a file system that all nodes share?",
            )
        time.sleep(0.2)
    if known != mine:
        print(f"job {known} has the cell now, not {mine}: nothing to do", file=sys.stderr)
    return bool(known == mine)


def _clear(cell: RunDir) -> None:
    for path in cell.path.iterdir():
        if path.name not in KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    try:
        code = main(*sys.argv[1:])
    except NsadiagError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)
