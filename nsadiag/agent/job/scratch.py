"""Directories outside the run directory (sockets, rings): each says who owns it, and those of the dead are removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nsadiag.agent.processes import Process, identify, is_alive
from nsadiag.evidence.layout import FILE_MODE, RunDir, open_private

MEMORY = Path("/dev/shm")
PREFIX = "nsadiag-"
OWNERS = (
    "owners"  # a line where these pids mean anything, a line with the run directory, and one for each owner
)
_swept = False


def make(run: RunDir | None = None, where: Path | None = None) -> Path:
    """A new private directory that is ours; a short one, as a unix socket's path has room for 107 bytes."""
    global _swept
    if not _swept:
        _swept = True
        sweep()
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    adopt(path, run)
    return path


def adopt(path: Path, run: RunDir | None = None) -> None:
    """Makes it ours, whoever has made it."""
    with contextlib.suppress(OSError), open_private(path / OWNERS, "w") as file:
        file.write(f"{_namespace()}\n{run.path.resolve() if run else ''}\n")
    add_owner(path, identify(os.getpid()))


@contextlib.contextmanager
def made(run: RunDir | None = None, where: Path | None = None) -> Iterator[Path]:
    """The same for the length of a block, or of the life of another owner; rings in it are then brought home."""
    path = make(run, where)
    try:
        yield path
    finally:
        remove(path, run, but=identify(os.getpid()))


def remove(path: Path, run: RunDir | None, *, but: Process | None = None) -> None:
    """Unless it has a living owner, `but` that one."""
    if any(is_alive(owner) for owner in _owners(path) if owner != but):
        return
    if run is not None:
        bring_home(run)
    shutil.rmtree(path, ignore_errors=True)


def add_owner(path: Path, owner: Process | None) -> None:
    """From here on the directory stays as long as that process lives, too."""
    if owner is not None:
        with contextlib.suppress(OSError), open_private(path / OWNERS, "a") as file:
            file.write(f"{owner.pid} {owner.started}\n")


def sweep() -> None:
    """Removes what runs left that were killed with their guard."""
    for place in {Path(tempfile.gettempdir()), MEMORY}:
        with contextlib.suppress(OSError):
            for path in place.glob(f"{PREFIX}*"):
                _remove_if_nobodys(path)


def _remove_if_nobodys(path: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.geteuid():
            return
        namespace, run = (path / OWNERS).read_text().splitlines()[:2]
        if namespace == _namespace() and _owners(path):
            remove(path, RunDir(path=Path(run)) if run else None)


def _owners(path: Path) -> list[Process]:
    with contextlib.suppress(OSError, ValueError):
        pairs = [line.split() for line in (path / OWNERS).read_text().splitlines()[2:]]
        return [Process(int(pid), int(started)) for pid, started in pairs]
    return []


def _namespace() -> str:
    """Pids of another boot, or of another container that shares this directory, say nothing here."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def bring_home(run: RunDir) -> None:
    """Replaces each link to a ring by the ring; one that cannot be copied stays a link."""
    for link in run.path.glob("ranks/*/**/blackbox.bin"):
        if link.is_symlink():
            with contextlib.suppress(OSError):
                copy = link.with_name(f".{link.name}.{os.getpid()}")
                shutil.copyfile(link, copy)
                copy.chmod(FILE_MODE)
                copy.replace(link)
