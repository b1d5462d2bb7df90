"""`python -m nsadiag.commands.batch.node SPEC DIR ABOUT`: the agent that an engine starts on each node of one cell's job.

Without arguments it is kept, and runs one job after the other (`commands.batch.serving`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
import zlib
from dataclasses import dataclass
from pathlib import Path

from nsadiag.agent import interrupts
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.cluster.place import Place
from nsadiag.commands import nodes
from nsadiag.commands.batch import hold
from nsadiag.commands.batch.serving import Pools, serve
from nsadiag.commands.matrix.cells import CellResult, Outcome, directory_of, note_done, run_cell
from nsadiag.commands.matrix.on_nodes import run_part_of_node_0, take_parts, task_of
from nsadiag.commands.matrix.probes import probes_of
from nsadiag.engines.batch import JOB_ID, MASTER_ADDR, NNODES, NODE_RANK
from nsadiag.engines.pool import LauncherPool
from nsadiag.engines.static import Lead, spread
from nsadiag.errors import (
    EXIT_HEALTHY,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    MachineError,
    NsadiagError,
    UsageError,
)
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.secrets.masking import hide
from nsadiag.printing import note
from nsadiag.spec import Cell, Matrix, find_spec, load_matrix

# Jobs may share a node: each has a port of its own, as far as their numbers tell them apart.
FIRST_PORT, PORTS = 20_000, 12_000
KNOWN_S = 60.0  # from the job's start, until whoever submitted it has written down its id
KEPT = {"cell.json", "job.json", hold.NAME}
MODULE = "nsadiag.commands.batch.node"


def arguments(spec: str, run: RunDir, cell: Cell, *, limit_s: float | None, token: Path) -> list[str]:
    """The arguments of the agent on each node of the cell's job.

    `limit_s` is of the job, as far as it is less than the cell's; `token` is the file with the run's, where there are several nodes.
    """
    about = json.dumps({"factors": cell.factors, "limit_s": limit_s, "token": str(token.resolve())})
    path = Path(spec)
    # The agent may start in another directory; what is no file is one of nsadiag's own matrices.
    return [str(path.resolve()) if path.is_file() else spec, str(run.path.resolve()), about]


def main(spec: str, directory: str, about: str, pools: Pools) -> int:
    """Runs the cell and leaves cell.json complete, which is the mark that it is done."""
    run, asked = RunDir(path=Path(directory)), json.loads(about)
    matrix = load_matrix(find_spec(spec))
    result = CellResult(cell=_cell(matrix, asked["factors"]))
    hide(result.cell.env, result.cell.command())
    job = Job(run=run, matrix=matrix, cell=result.cell, pools=pools, limit_s=asked["limit_s"])
    with hold.shared(job.directory):
        if not _is_ours(job.directory):
            return EXIT_HEALTHY
        nnodes = int(os.environ.get(NNODES, "1"))
        found = _alone(job) if nnodes == 1 else _with_others(job, _place(nnodes, Path(asked["token"])))
        if isinstance(found, int):
            return found
        note_done(run, result, found, beside=0.0)
    return EXIT_HEALTHY


@dataclass(frozen=True, kw_only=True)
class Job:
    """One launcher line, of which this agent runs the part of its node."""

    run: RunDir
    matrix: Matrix
    cell: Cell
    pools: Pools
    limit_s: float | None

    @property
    def directory(self) -> RunDir:
        return directory_of(self.run, self.cell)

    def options(self) -> WatchOptions:
        limits = [s for s in (self.cell.timeout_s, self.limit_s) if s]
        return WatchOptions(stall_after_s=self.matrix.stall_after_s, timeout_s=min(limits, default=0.0))

    def launchers(self) -> LauncherPool:
        return self.pools.of(self.run, tuple(self.matrix.preload))


def _alone(job: Job) -> Outcome:
    _clear(job.directory)
    pool = job.launchers()
    launcher = pool.take(job.cell.env)
    try:
        return run_cell(job.run, job.matrix, job.cell, launcher, job.options())
    finally:
        pool.give(launcher)


def _place(nnodes: int, token: Path) -> Place:
    port = FIRST_PORT + zlib.crc32(os.environ[JOB_ID].encode()) % PORTS
    return Place(
        nnodes=nnodes,
        node_rank=int(os.environ[NODE_RANK]),
        master_addr=os.environ[MASTER_ADDR],
        master_port=port,
        token=token.read_text(),
    )


def _with_others(job: Job, place: Place) -> Outcome | int:
    """The outcome on node 0; the exit code on every other node."""
    directory, cell, task = job.directory, job.cell, task_of(job.matrix, [job.cell])
    if not place.is_first:
        member = nodes.member(place, task, out=None, force=False)
        try:
            code = take_parts(member, [cell], job.launchers())
            return member.exit_code if code is None else code
        finally:
            member.close()
    outcomes: list[Outcome] = []

    def act() -> tuple[int, str]:
        # The cell's directory is the root: other cells' jobs meet beside it at the same time.
        lead = Lead(crew, directory, nodes.crowd())
        lead.open(kind="matrix")
        counts, probes = spread(cell.world_size, place.nnodes), probes_of(job.matrix)
        part = lead.announce(at=".", name=cell.id, counts=counts, probes=probes, options=job.options())
        outcomes.append(run_part_of_node_0(lead, part, job.launchers(), directory, cell))
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
        note(f"job {known} has the cell now, not {mine}: nothing to do")
    return bool(known == mine)


def _clear(cell: RunDir) -> None:
    for path in cell.path.iterdir():
        if path.name not in KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def run_job(words: list[str], pools: Pools) -> int:
    """The exit code; why a job failed is on stderr."""
    try:
        spec, directory, about = words
        return main(spec, directory, about, pools)
    except NsadiagError as error:
        note(f"error: {error.message}\nhint: {error.hint}")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception:
        note(traceback.format_exc(), end="")
        return EXIT_INTERNAL


if __name__ == "__main__":
    interrupts.listen()
    # Slurm's warning that the time is nearly up.
    signal.signal(signal.SIGUSR2, signal.getsignal(signal.SIGTERM))
    launchers, code = Pools(), EXIT_HEALTHY
    try:
        if len(sys.argv) > 1:
            code = run_job(sys.argv[1:], launchers)
        else:
            serve(lambda words: run_job(words, launchers))
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    finally:
        launchers.close()
    sys.exit(code)
