"""One per process: decides whether this process is a rank, opens its black box, installs the probes."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from nsadiag.evidence.blackbox import BlackBox, Counter, Kind, Names, Phase
from nsadiag.evidence.layout import (
    RING_DIR,
    RankDir,
    RunDir,
    append_json_line,
    this_node,
    write_json,
)
from nsadiag.evidence.secrets import mask_command
from nsadiag.worker import crash, numbering, output, traceback_signal, unnamed
from nsadiag.worker.on_import import when_imported
from nsadiag.worker.place import Places

LAST = -1_000_000  # priority among multiprocessing's finalizers
_said_goodbye = False
# Plain integers: reading a member of an enumeration costs as much as half the event.
_STEP, _POINT = int(Kind.STEP), int(Phase.POINT)
_guessed = False  # whether it is taken for rank 0 for want of better knowledge
_settled = False  # whether this process knows if it is a rank that is to be recorded


class Runtime:
    """The state of one rank: its black box and what the probes share."""

    def __init__(self, directory: RankDir, rank: int, world_size: int) -> None:
        self.directory = directory
        self.rank = rank
        self.world_size = world_size
        self.names = Names(directory.names)
        self.places = Places(self.names)
        memory = os.environ.get(RING_DIR)
        self.box = BlackBox(
            directory.blackbox,
            self.names,
            rank=rank,
            world_size=world_size,
            memory=Path(memory) if memory else None,
        )
        self._gaps = 0
        self.emit = self.box.emit
        self.silenced = False
        self._lost = 0
        self.keep: list[Any] = []  # what must live as long as the process: files, servers, hook handles

    def gap(self, what: str) -> None:
        """Records what could not be observed, in one appended line; where even that fails, nothing more can be done."""
        if self.silenced:
            return
        self._gaps += 1
        self.box.count(Counter.GAPS, self._gaps)
        with contextlib.suppress(OSError):
            append_json_line(self.directory.gaps, {"t_wall_ns": time.time_ns(), "gap": what})

    def step_ended(self) -> None:
        """The events that follow belong to the next step."""
        box = self.box
        box.step = step = box.step + 1
        box.count_steps(step)
        if self._lost != self.names.lost:
            self._lost = self.names.lost
            box.count(Counter.NAMES_LOST, self._lost)
        self.emit(_STEP, _POINT, 0, step, time.process_time_ns())

    def renumber(self, directory: RankDir, rank: int, world_size: int) -> None:
        """It is another rank than it was taken for, and its files are elsewhere."""
        self.directory, self.rank, self.world_size = directory, rank, world_size
        self.box.renumber(rank, world_size)

    def silence(self) -> None:
        """In a forked child: the parent's ring, names and sockets are not ours to write to."""
        self.silenced = True
        self.names.silence()
        self.box.silence()


class Recorded:
    """What runs in every step looks here, and spares itself the frame of `current`."""

    rank: Runtime | None = None


recorded = Recorded()


def current() -> Runtime | None:
    """The runtime of this process, if it is a rank that is being recorded."""
    return recorded.rank


def boot() -> None:
    """Start-up of any Python process of the job; a rank is recorded from here on."""
    if "RANK" in os.environ:
        open_rank(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1")))
    # A process without RANK may be a launcher, a helper, or a single-process job. The last one shows
    # itself by training: the probes then open the black box as rank 0 (see `ensure_rank`).
    when_imported("torch", _on_torch)


def ensure_rank() -> Runtime | None:
    """The runtime, opened now if this process turns out to be a rank after all: rank 0, unless its environment tells."""
    global _guessed
    if not _settled:
        _guessed = "RANK" not in os.environ
        open_rank(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        if recorded.rank is not None:
            _start_torch_evidence(recorded.rank)
    return recorded.rank


def told_rank(rank: int, world_size: int) -> Runtime | None:
    """The same for a process that says which rank it is; one that was taken for another before becomes that one."""
    global _guessed
    if _settled and not _guessed:
        return recorded.rank
    _guessed = False
    if recorded.rank is not None:
        try:
            numbering.become(recorded.rank, rank, world_size)
        except OSError as error:
            recorded.rank.gap(f"this is rank {rank}, and is recorded as rank {recorded.rank.rank}: {error}")
        return recorded.rank
    open_rank(rank, world_size)
    if recorded.rank is not None:
        _start_torch_evidence(recorded.rank)
    return recorded.rank


def open_rank(rank: int, world_size: int) -> None:
    """Claims the rank's directory and opens its black box; on any obstacle the job simply goes on."""
    global _settled
    _settled = True
    directory = RunDir(path=Path(os.environ["NSADIAG_RUN_DIR"])).rank(rank)
    try:
        if not numbering.claim(directory, from_guesses=world_size > 1 and not _guessed):
            return
        opened = recorded.rank = Runtime(directory, rank, world_size)
    except OSError as error:
        print(f"nsadiag: rank {rank} is not recorded: {error}", file=sys.stderr)
        return
    identity = _identity(rank, world_size, output.take_over(directory))
    guess = {numbering.GUESSED: True} if _guessed else {}
    write_json(directory.meta, {**identity, **guess, "traceback_signal": traceback_signal.register(opened)})
    opened.emit(Kind.PROCESS, Phase.BEGIN)
    crash.install(opened)
    atexit.register(_at_exit)
    _say_goodbye_from_multiprocessing()
    os.register_at_fork(after_in_child=_after_fork)


def _say_goodbye_from_multiprocessing() -> None:
    """Its forked children leave by os._exit, past the handlers of atexit, but not past its own finalizers."""
    # Not imported for this: a child of it has it, and no other process needs it.
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _at_exit, exitpriority=LAST)


def _identity(rank: int, world_size: int, logs: dict[str, str]) -> dict[str, Any]:
    return {
        "rank": rank,
        "world_size": world_size,
        "local_rank": int(os.environ.get("LOCAL_RANK", rank)),
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "host": this_node(),
        "python": sys.version.split()[0],
        "argv": mask_command(getattr(sys, "orig_argv", sys.argv)),
        "cwd": str(Path.cwd()),
        "started_wall_ns": time.time_ns(),
        "restart": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        "logs": logs,
        # Whether hash() of a text is the same on all ranks; a digest, as the salt is nobody's business.
        "text_hash": hashlib.blake2b(str(hash("nsadiag")).encode(), digest_size=8).hexdigest(),
    }


def _after_fork() -> None:
    global _settled, _guessed
    _settled, _guessed = True, False
    if recorded.rank is not None:
        # Hooks that kept the runtime fall silent; those that ask for it find none.
        recorded.rank.silence()
        recorded.rank = None


def _at_exit() -> None:
    global _said_goodbye
    # atexit runs in a forked child too, unless it leaves by os._exit; `emit` is silent there.
    if recorded.rank is not None and not _said_goodbye:
        _said_goodbye = True
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        recorded.rank.emit(Kind.PROCESS, Phase.END, 0, peak_kib)


def _on_torch() -> None:
    """torch has just been imported: patch it once, whatever this process turns out to be."""
    from nsadiag.worker.probes import install_probes

    _name_recorder_size_for_older_torch()
    install_probes()
    if recorded.rank is not None:
        _start_torch_evidence(recorded.rank)
    elif not _settled:
        unnamed.listen(lambda: recorded.rank is None and (_guessed or not _settled))


def _name_recorder_size_for_older_torch() -> None:
    """Before 2.8 the recorder read another variable, of which later ones warn that it is deprecated."""
    import torch

    if (
        tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 8)
        and "TORCH_FR_BUFFER_SIZE" in os.environ
    ):
        os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", os.environ["TORCH_FR_BUFFER_SIZE"])


def _start_torch_evidence(runtime: Runtime) -> None:
    from nsadiag.worker import server

    try:
        server.start(runtime)
    except Exception as error:
        runtime.gap(f"no worker server: {error!r}")


def close() -> None:
    """Ends the recording before the process ends (nsadiag.watch)."""
    global _said_goodbye
    _at_exit()
    if recorded.rank is not None:
        recorded.rank.silence()
    recorded.rank, _said_goodbye = None, False


def attach_to_warm_process(rank: int, world_size: int) -> Runtime | None:
    """For ranks forked from a process that had imported torch before it knew the run (agent.warm)."""
    open_rank(rank, world_size)
    _on_torch()
    return recorded.rank
