"""The recording of this process: whether it is a rank, which one, and the recorder it has then."""

from __future__ import annotations

import atexit
import hashlib
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsadiag.evidence.arming.settings import JOB
from nsadiag.evidence.layout import RunDir, this_node, write_json
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.secrets.masking import mask_command
from nsadiag.worker import numbering, output, ptracer
from nsadiag.worker.failures import crash
from nsadiag.worker.failures.fault_handler import Faults
from nsadiag.worker.interruptions import pass_on, tolerated
from nsadiag.worker.place import learn_user_code
from nsadiag.worker.recorder import Recorder

LAST = -1_000_000  # priority among multiprocessing's finalizers
_said_goodbye = False
_guessed = False  # whether it is taken for rank 0 for want of better knowledge
_faults: Faults | None = None  # of the rank that is recorded
_settled = False  # whether this process knows if it is a rank that is to be recorded
# Called with each recorder that is opened from now on: what can only be started once torch is there.
on_opened: list[Callable[[Recorder], None]] = []
# Called once as the rank's exit handlers run.
on_leaving: list[Callable[[Recorder], None]] = []


class Recorded:
    """The recording that runs: what is called in every step looks here, and spares itself the frame of `current`."""

    rank: Recorder | None = None


recorded = Recorded()


def current() -> Recorder | None:
    """The recorder of this process, if it is a rank that is being recorded."""
    return recorded.rank


def is_unnamed() -> bool:
    """Whether this process may yet turn out to be another rank than it is taken for, and is not recorded."""
    return recorded.rank is None and (_guessed or not _settled)


def ensure_rank() -> Recorder | None:
    """The recorder, opened now if this process turns out to be a rank after all: rank 0, unless its environment tells."""
    global _guessed
    if not _settled:
        named = numbering.named_rank()
        _guessed = named is None
        open_rank(*(named or (0, numbering.number_in("WORLD_SIZE") or 1)))
    return recorded.rank


def open_named_rank() -> None:
    """Opens the recorder of the rank that the environment names, if it names one."""
    if named := numbering.named_rank():
        open_rank(*named)


def adopt_rank(rank: int, world_size: int) -> Recorder | None:
    """The same for a process that says which rank it is; one that was taken for another before becomes that one."""
    global _guessed
    if _settled and not _guessed:
        return recorded.rank
    _guessed = False
    if recorded.rank is not None:
        try:
            numbering.become(recorded.rank, rank, world_size)
        except OSError as error:
            pass_on(error)
            recorded.rank.gap(f"this is rank {rank}, and is recorded as rank {recorded.rank.rank}: {error}")
        return recorded.rank
    open_rank(rank, world_size)
    return recorded.rank


def open_rank(rank: int, world_size: int) -> None:
    """Claims the rank's directory and opens its black box; on any obstacle the job simply goes on."""
    global _settled, _faults
    _settled = True
    run = RunDir(path=Path(os.environ["NSADIAG_RUN_DIR"]))
    directory = run.rank(rank)
    try:
        # An armed job has a folder for each launcher.
        if JOB not in os.environ and not numbering.belongs(run):
            return
        if not numbering.claim(directory, from_guesses=world_size > 1 and not _guessed):
            return
        opened = recorded.rank = Recorder(directory, rank, world_size)
    except OSError as error:
        pass_on(error)
        # Standard error may be a file of ours on that very disk; of what nobody has asked for nothing is said.
        with tolerated(Exception):
            if JOB not in os.environ:
                print(f"nsadiag: rank {rank} is not recorded: {error}", file=sys.stderr)
        return
    identity = _identity(rank, world_size, output.take_over(directory))
    guess = {numbering.GUESSED: True} if _guessed else {}
    faults = _faults = Faults(opened)
    opened.checks.append(faults.check)
    try:
        write_json(directory.meta, {**identity, **guess, "traceback_signal": faults.start()})
    except OSError as error:
        pass_on(error)
        opened.gap(f"meta.json could not be written: {error}")
    opened.emit(Kind.PROCESS, Phase.BEGIN)
    crash.install(opened)
    atexit.register(_at_exit)
    _say_goodbye_from_multiprocessing()
    os.register_at_fork(after_in_child=_after_fork)
    for start in on_opened:
        start(opened)


def _say_goodbye_from_multiprocessing() -> None:
    """Its forked children leave by os._exit, past the handlers of atexit, but not past its own finalizers."""
    # Not imported for this: a child of it has it, and no other process needs it.
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _at_exit, exitpriority=LAST)


def _identity(rank: int, world_size: int, logs: dict[str, str]) -> dict[str, Any]:
    local_rank = numbering.number_in("LOCAL_RANK")
    return {
        "rank": rank,
        "world_size": world_size,
        "local_rank": rank if local_rank is None else local_rank,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "pid_namespace": _pid_namespace(),
        "host": this_node(),
        "python": sys.version.split()[0],
        "argv": mask_command(getattr(sys, "orig_argv", sys.argv)),
        "cwd": str(Path.cwd()),
        "started_wall_ns": time.time_ns(),
        "restart": numbering.number_in("TORCHELASTIC_RESTART_COUNT") or 0,
        "logs": logs,
        "user_code": learn_user_code(),
        "probes": os.environ.get("NSADIAG_PROBES", "light"),
        # Whether hash() of a text is the same on all ranks; a digest, as the salt is nobody's business.
        "text_hash": hashlib.blake2b(str(hash("nsadiag")).encode(), digest_size=8).hexdigest(),
    }


def _pid_namespace() -> int | None:
    """In which its pid is one: the agent may be outside, and see it under another."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError as error:
        pass_on(error)
        return None


def _after_fork() -> None:
    global _settled, _guessed
    _settled, _guessed = True, False
    ptracer.allow()
    if recorded.rank is not None:
        # Hooks that kept the recorder fall silent; those that ask for it find none.
        recorded.rank.silence()
        recorded.rank = None


def _at_exit() -> None:
    global _said_goodbye
    # atexit runs in a forked child too, unless it leaves by os._exit; `emit` is silent there.
    if recorded.rank is not None and not _said_goodbye:
        _said_goodbye = True
        crash.record_last(recorded.rank)
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        recorded.rank.emit(Kind.PROCESS, Phase.END, 0, peak_kib)
        for leave in on_leaving:
            with tolerated(Exception):
                leave(recorded.rank)


def close() -> None:
    """Ends the recording before the process ends (nsadiag.watch)."""
    global _said_goodbye
    _at_exit()
    if recorded.rank is not None:
        recorded.rank.silence()
        crash.uninstall()
        if _faults is not None:
            _faults.stop()
    recorded.rank, _said_goodbye = None, False
