"""The directory of a rank: claims it, and moves what was recorded of a process that was taken for another rank."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from nsadiag.evidence.layout import (
    RankDir,
    RunDir,
    log_of,
    make_private_dir,
    read_own_json,
    this_node,
    write_json,
)
from nsadiag.worker.interruptions import pass_on, tolerated

if TYPE_CHECKING:
    from nsadiag.worker.recorder import Recorder

GUESSED = (
    "guessed"  # in meta.json of a process that was taken for rank 0 since it trained before it said who it is
)
LAUNCHER = "launcher.json"  # in a node's folder: whose ranks are recorded
LOGS = ("stdout.log", "stderr.log")  # they go on where a rank is restarted


def number_in(variable: str) -> int | None:
    """A number that the launcher left in the environment; None where there is none, or something else."""
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return None


def named_rank() -> tuple[int, int] | None:
    """Rank and world size by the environment; None unless both can be had: programs use these names for words as well."""
    rank, world_size = number_in("RANK"), number_in("WORLD_SIZE")
    if rank is None or (world_size is None and "WORLD_SIZE" in os.environ):
        return None
    return rank, world_size or 1


def belongs(run: RunDir) -> bool:
    """True of a rank of the launcher whose ranks are recorded: of two at a time, in one command, the first.

    They would be taken for one job of as many ranks as both have.
    """
    meets = _meets()
    path = run.node(this_node()) / LAUNCHER
    known = read_own_json(path)
    if known.get("meets") == meets or not (meets or known):
        return True
    if known and _lives(known.get("pid")):
        return False
    with tolerated(OSError):
        # Of a process that a shell has left its parent is that of all such.
        parent = os.getppid()
        make_private_dir(path.parent)
        write_json(path, {"meets": meets, "pid": parent if parent > 1 else os.getpid()})
    return True


def _meets() -> str:
    """The name of a launch, which its ranks have in common and no others at the same time; empty where no launcher says."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if name not in ("", "none"):
        return name
    port = os.environ.get("MASTER_PORT", "")
    return f"{os.environ.get('MASTER_ADDR', '')}:{port}" if port else ""


def _lives(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError as error:
        pass_on(error)
        return False
    except OSError as error:
        pass_on(error)
    return True


def claim(directory: RankDir, *, from_guesses: bool = False) -> bool:
    """False if another living process already is this rank: a rank's own children inherit its RANK.

    `from_guesses`: one that is only taken for this rank has to give way.
    """
    if from_guesses:
        _displace_a_guess(directory)
    make_private_dir(directory.path)
    try:
        os.close(os.open(directory.blackbox, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if _claimed_by_the_living(directory):
            return False
        _set_aside(directory)
    return True


def become(recorder: Recorder, rank: int, world_size: int) -> None:
    """Moves what the process has recorded to the directory of the rank that it turns out to be. Raises OSError."""
    home, target = _home(recorder.directory), RunDir(path=recorder.directory.path.parents[1]).rank(rank)
    if home != target.path:
        if not claim(target, from_guesses=world_size > 1):
            raise FileExistsError(f"another process is rank {rank}")
        for entry in list(home.iterdir()):
            entry.rename(target.path / entry.name)
        home.rmdir()
    _rename_socket(recorder.rank, rank)
    recorder.renumber(target, rank, world_size)
    about = {**read_own_json(target.meta), "rank": rank, "world_size": world_size, "logs": _logs()}
    about["local_rank"] = int(os.environ.get("LOCAL_RANK", rank))
    about.pop(GUESSED, None)
    write_json(target.meta, about)


def _logs() -> dict[str, str]:
    found = {}
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        try:
            found[name] = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        except OSError as error:
            pass_on(error)
            found[name] = "closed"
    return found


def _rename_socket(before: int, now: int) -> None:
    """The worker server's, which listens on whatever its socket is called."""
    folder = os.environ.get("NSADIAG_SOCKET_DIR")
    if folder and before != now:
        # Whoever is that rank may have taken the name meanwhile; then it is theirs.
        with tolerated(OSError):
            if not read_own_json(RunDir(path=Path(os.environ["NSADIAG_RUN_DIR"])).rank(before).meta):
                Path(folder, f"{before}.sock").rename(Path(folder, f"{now}.sock"))


def _home(directory: RankDir) -> Path:
    """The directory of this process's files: the rank for which it was taken may have come meanwhile."""
    meta = read_own_json(directory.meta)
    return directory.path if meta.get("pid") == os.getpid() else _aside(directory, os.getpid())


def _aside(directory: RankDir, pid: int) -> Path:
    return directory.path.parent / f"guess-{pid}"


def _displace_a_guess(directory: RankDir) -> None:
    """Renamed as a whole: what is open in it stays open, and its own process finds it by its pid."""
    meta = read_own_json(directory.meta)
    if meta.get(GUESSED) and meta["pid"] != os.getpid():
        with tolerated(OSError):
            directory.path.rename(_aside(directory, meta["pid"]))


def _set_aside(directory: RankDir) -> None:
    """The launcher has restarted this rank: what its dead predecessor left is kept beside the new files.

    Renamed, never truncated: a reader may have the old black box mapped, and would die by SIGBUS.
    """
    attempts = directory.path / "attempts"
    make_private_dir(attempts)
    number = sum(1 for _ in attempts.iterdir())
    target = make_private_dir(attempts / f"{number:02d}")
    for entry in list(directory.path.iterdir()):
        if log_of(entry).name not in ("attempts", *LOGS):
            entry.rename(target / entry.name)


def _claimed_by_the_living(directory: RankDir) -> bool:
    try:
        pid = json.loads(directory.meta.read_text())["pid"]
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError) as error:
        pass_on(error)
        return False
    # The pid is our own after an exec, which leaves nothing of the predecessor, and in a subinterpreter, beside it.
    return bool(pid != os.getpid()) or not _is_main_interpreter()


def _is_main_interpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13; before
        with tolerated(ImportError):
            interpreters = importlib.import_module(name)
            return bool(interpreters.get_current() == interpreters.get_main())
    return True
