"""`with nsadiag.watch(model):` for people who prefer a line of code to a command in front of their launcher."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from nsadiag.evidence.layout import RunDir, make_private_dir, this_node, write_private
from nsadiag.evidence.ownership import check_private
from nsadiag.worker import session, startup
from nsadiag.worker.failures import crash
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.introspection import server
from nsadiag.worker.probes import PROBES_VARIABLE, remove_probes
from nsadiag.worker.probes.autograd import module_calls
from nsadiag.worker.watched import Watched

RUN_DIR, RUN_ID, PATIENCE = "NSADIAG_RUN_DIR", "NSADIAG_RUN_ID", "NSADIAG_PATIENCE"
FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_ENABLE_TIMING": "1"}  # as in agent.job.launch
# Not a child of the rank: it is not to be ended with it, nor waited for.
STARTER = (
    "import os, sys; os.fork() and os._exit(0); from nsadiag.commands.beside import main; main(*sys.argv[1:])"
)
START_S = 30.0  # for Python to start; a rank does not wait longer for its watch
KERNELS = ("ipykernel_launcher", "colab_kernel_launcher")
_times = 0  # that a watch was begun in this process


class Block(contextlib.ContextDecorator):
    """A watch that begins where it is entered."""

    def __init__(self, watched: Callable[[], contextlib.AbstractContextManager[Watched]]) -> None:
        self._watched = watched
        self._entered: contextlib.AbstractContextManager[Watched] | None = None

    def __enter__(self) -> Watched:
        self._entered = self._watched()
        return self._entered.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        assert self._entered is not None
        return self._entered.__exit__(*error)

    def __del__(self) -> None:
        if self._entered is None:
            says = "nsadiag.watch() alone records nothing: write `with nsadiag.watch(model):` around the training"
            warnings.warn(says, RuntimeWarning, stacklevel=2)


def watch(
    model: torch.nn.Module | None = None,
    *,
    out: str | Path | None = None,
    probes: str = "light",
    stall_after: float | None = None,
    patience: float | None = None,
    on_hang: Literal["leave", "stop"] = "leave",
) -> Block:
    """Records this rank in the block, and has one process a node look on, judge and report as `nsadiag run` does.

    Every rank enters it, before `init_process_group` if the flight recorder is to be seen. `out` is the run
    directory, the same on all ranks of a node; by default one under artifacts/. `stall_after`: seconds, learnt
    if None. `patience`: seconds of silence after which a suspected hang is taken for one, by default
    `NSADIAG_PATIENCE` or learnt. `NSADIAG_NOTIFY` names whom to notify, as for `nsadiag run --notify`. A job that hangs is left as
    it is unless `on_hang` is "stop". The block's value is the run directory, whose `verdict` is waited for once the block is over;
    under `nsadiag run`, the directory of the run, and nothing else happens. Entering raises OSError where it cannot be made.
    """
    return Block(functools.partial(_watched, model, out, probes, stall_after, patience, on_hang))


@contextlib.contextmanager
def _watched(
    model: torch.nn.Module | None,
    out: str | Path | None,
    probes: str,
    stall_after: float | None,
    patience: float | None,
    on_hang: str,
) -> Iterator[Watched]:
    if session.current() is not None or (os.environ.get(RUN_DIR) and session.ensure_rank() is not None):
        _meet(model)
        yield Watched(os.environ[RUN_DIR])
        return
    began_ns = time.monotonic_ns()
    run = _begin(_directory(out), probes)
    _look_on(run, began_ns, stall_after, patience, on_hang)
    _meet(model)
    watched = Watched(run.path)
    try:
        yield watched
    except BaseException as error:
        rank = session.current()
        if rank is not None:
            crash.record(rank, error, error.__traceback__, thread="MainThread")
        raise
    finally:
        remove_probes()
        session.close()
        watched.waits = True


def _directory(out: str | Path | None) -> Path:
    """The same for all ranks of this node, and for no other job: they share their launcher."""
    global _times
    _times += 1
    if out is not None:
        return Path(out)
    script = Path(sys.argv[0]).stem or "python"
    script = "notebook" if script in KERNELS else script
    again = f"-{_times}" if _times > 1 else ""
    folder, name = make_private_dir(Path("artifacts")), f"-{script}-{_family()}{again}"
    # Should the clock be set between the starts of two ranks, the later one finds what the first has made.
    made = (p for p in folder.iterdir() if p.name.endswith(name))
    return next(made, folder / f"{_started()}{name}")


def _started() -> str:
    """The moment at which the launcher was started, as in the names of other runs."""
    ticks = int(_family().rpartition("-")[2])
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    seconds = int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return datetime.fromtimestamp(seconds).strftime("%Y%m%d-%H%M%S")


def _family() -> str:
    """Pid and start of the launcher, or of this process where there is none."""
    pid = os.getppid() if "RANK" in os.environ else os.getpid()
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
    return f"{pid}-{started}"


def _begin(path: Path, probes: str) -> RunDir:
    run = RunDir(path=path.resolve())
    make_private_dir(run.path)
    sockets = _sockets(run)
    added = {
        RUN_DIR: str(run.path),
        server.SOCKET_DIR: str(sockets),
        PROBES_VARIABLE: probes,
        RUN_ID: _family(),
    }
    os.environ.update(added)
    for name, value in FLIGHT_RECORDER.items():
        os.environ.setdefault(name, value)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    opened = startup.attach_to_warm_process(rank, world)
    if opened is not None and dist.is_available() and dist.is_initialized():
        opened.gap("the process group was made before the watch began: its flight recorder may be off")
    return run


def _sockets(run: RunDir) -> Path:
    """A directory that all ranks of this node share, whose name nobody can foretell: the first of them says it."""
    where = make_private_dir(run.node(this_node())) / f".sockets-{_family()}"
    # Short: a unix socket's path has room for 107 bytes.
    mine = Path(tempfile.mkdtemp(prefix="nsadiag-"))
    said = where.with_name(f"{where.name}-{os.getpid()}")
    write_private(said, str(mine))
    try:
        os.link(said, where)
    except FileExistsError:
        mine.rmdir()
    finally:
        said.unlink()
    shared = Path(where.read_text())
    check_private(shared)
    return shared


def _look_on(
    run: RunDir, began_ns: int, stall_after: float | None, patience: float | None, on_hang: str
) -> None:
    """One process beside the ranks of this node, which outlives them."""
    if int(os.environ.get("LOCAL_RANK", "0")) != 0:
        return
    world = os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (os.environ.get("PYTHONPATH", ""), package) if p)
    # Without the mark: what carries it belongs to the job, and is ended with it.
    environment = {k: v for k, v in os.environ.items() if k not in (RUN_ID, RUN_DIR, "RANK")}
    starter = subprocess.Popen(
        [
            *(sys.executable, "-c", STARTER, str(run.path), os.environ[server.SOCKET_DIR]),
            *(_family(), world, str(began_ns), on_hang),
            "auto" if stall_after is None else str(stall_after),
            os.environ.get(PATIENCE, "auto") if patience is None else str(patience),
            *sys.argv,
        ],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**environment, "PYTHONPATH": path},
    )
    with tolerated(subprocess.TimeoutExpired):
        starter.wait(START_S)


def _meet(model: Any) -> None:
    """Hooks the model's parameters now, rather than when it first runs."""
    rank = session.current()
    if model is not None and rank is not None:
        module_calls.name_of(model, rank)
