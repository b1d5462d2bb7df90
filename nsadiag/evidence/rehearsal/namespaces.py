"""Namespaces that a rehearsed process enters: what it writes below the working directory is thrown away, and there is no network.

In its mount namespace an overlay lies over the working directory, so that all paths stay as they are and nothing is copied; in its
network namespace there is the loopback alone. Where the kernel allows neither, it goes on without, and that is said.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nsadiag.evidence.rehearsal.isolation import Isolation

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
SIOCSIFADDR, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8914, 1
LIBC = ctypes.CDLL(None, use_errno=True)
TREE = "tree"  # in the room: the working directory as it is without the overlay


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Whatever is to be kept apart. `room`: an empty directory of ours; `lower`: what lies below the overlay, if it is not the working directory."""

    room: str
    kept: tuple[str, ...] = ()  # directories below the working directory that stay the real ones
    files: bool = True
    lasting: bool = False  # what is written stays in the room, for the next command that is given it
    network: bool = True
    lower: str = ""


def isolate(request: Apart) -> Isolation:
    """Enters the namespaces. Returns what was kept apart, and why the rest was not."""
    addresses = _own_addresses() if request.network else []
    flags = (CLONE_NEWNS if request.files else 0) | (CLONE_NEWNET if request.network else 0)
    try:
        if flags:
            _unshare(flags)
    except OSError as error:
        why = f"no namespace: {error.strerror}"
        return Isolation(files=why if request.files else "", network=why if request.network else "")
    files = network = ""
    if request.files:
        files = _tried(lambda: _overlay(Path.cwd(), request))
    if request.network:
        network = _tried(lambda: _raise_loopback(addresses))
    return Isolation(
        files=files, files_apart=request.files and not files,
        network=network, network_apart=request.network and not network,
    )  # fmt: skip


def _tried(enter: Callable[[], None]) -> str:
    try:
        enter()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _unshare(flags: int) -> None:
    """As root, else as root of a user namespace of its own. Raises OSError."""
    with suppress(OSError):
        return _checked(LIBC.unshare(flags))
    user, group = os.getuid(), os.getgid()
    _checked(LIBC.unshare(flags | CLONE_NEWUSER))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text)
    return None


def _checked(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _mount(source: str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    words = (os.fsencode(word) for word in (source, target, kind))
    _checked(LIBC.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) or None))


def _overlay(tree: Path, request: Apart) -> None:
    """Whatever is written below the tree lands in memory, and goes with the namespace. Raises OSError."""
    room, mounts = Path(request.room), [] if request.lower else _mounts()
    if inside := [mount for mount in mounts if mount != tree and mount.is_relative_to(tree)]:
        raise OSError(0, f"{inside[0]} is mounted below the working directory")
    _mount("none", Path("/"), "none", MS_REC | MS_PRIVATE)
    if not request.lasting:
        _mount("tmpfs", room, "tmpfs", options="mode=700,size=50%")
    upper, work, below = room / "upper", room / "work", room / TREE
    held = [(Path(path), room / f"kept-{number}") for number, path in enumerate(request.kept)]
    for made in (upper, work, below, *(place for _, place in held)):
        made.mkdir(exist_ok=request.lasting)
    for path, place in ((Path(request.lower or tree), below), *held):
        _mount(str(path), place, "none", MS_BIND)
    about = f"lowerdir={_escaped(below)},upperdir={upper},workdir={work}"
    try:
        _mount("overlay", tree, "overlay", options=f"{about},userxattr")
    except OSError:
        _mount("overlay", tree, "overlay", options=about)
    for path, place in held:
        _mount(str(place), path, "none", MS_BIND)
    os.chdir(tree)


def _escaped(path: Path) -> str:
    """As the kernel splits options at commas, and directories at colons."""
    return "".join(f"\\{letter}" if letter in "\\,:" else letter for letter in str(path))


def _mounts() -> list[Path]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [Path(line.split()[4].encode().decode("unicode_escape")) for line in lines]


def _own_addresses() -> list[str]:
    """IPv4 addresses that this host's name stands for: launchers let ranks meet there."""
    with suppress(OSError):
        found = socket.gethostbyname_ex(socket.gethostname())[2]
        return [address for address in found if not address.startswith("127.")]
    return []


def _raise_loopback(addresses: list[str]) -> None:
    """Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        for number, address in enumerate(addresses):
            about = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, SIOCSIFADDR, struct.pack("16s16s", f"lo:{number}".encode(), about))
