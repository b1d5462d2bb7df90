"""`python -m nsadiag.commands.node SPEC DIR FACTORS`: the agent that an engine starts on each node of one cell's job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from nsadiag.agent import interrupts
from nsadiag.agent.watch import WatchOptions
from nsadiag.commands.cells import CellResult, directory_of, note_done, run_cell
from nsadiag.engines.batch import JOB_ID, NNODES
from nsadiag.engines.pool import LauncherPool
from nsadiag.errors import EXIT_HEALTHY, EXIT_INTERRUPTED, MachineError, NsadiagError, UsageError
from nsadiag.evidence.layout import RunDir, make_private_dir, read_json, this_node
from nsadiag.evidence.secrets import hide
from nsadiag.spec import Cell, Matrix, find_spec, load_matrix

KNOWN_S = 60.0  # from the job's start, until whoever submitted it has written down its id
KEPT = {"cell.json", "job.json"}


def command(spec: str, run: RunDir, cell: Cell, *, limit_s: float | None) -> list[str]:
    """What is to be run on each node of the cell's job; `limit_s` is of the job, as far as it is less than the cell's."""
    about = json.dumps({"factors": cell.factors, "limit_s": limit_s})
    return [sys.executable, "-m", "nsadiag.commands.node", spec, str(run.path.resolve()), about]


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
    if int(os.environ.get(NNODES, "1")) > 1:
        raise UsageError("a cell on several nodes is not there yet", "one node a cell: --nodes 1")
    _clear(directory_of(run, result.cell))
    limits = [s for s in (result.cell.timeout_s, asked["limit_s"]) if s]
    options = WatchOptions(stall_after_s=matrix.stall_after_s, timeout_s=min(limits, default=0.0))
    log = make_private_dir(directory_of(run, result.cell).node(this_node())) / "warm.log"
    pool = LauncherPool(log, preload=tuple(matrix.preload))
    try:
        outcome = run_cell(run, matrix, result.cell, pool.take(result.cell.env), options)
    finally:
        pool.close()
    note_done(run, result, outcome, beside=0.0)
    return EXIT_HEALTHY


def _cell(matrix: Matrix, factors: dict[str, str]) -> Cell:
    number = factors.pop("repeat", None)
    if unknown := set(factors) ^ set(matrix.axes):
        raise UsageError(
            f"the spec has changed since the job was submitted: {sorted(unknown)[0]}",
            "submit the matrix anew",
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
