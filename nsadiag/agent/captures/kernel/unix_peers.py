"""The other ends of unix sockets, which /proc does not tell: asked of the kernel by a netlink socket, as `ss` does."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

PROTOCOL = 4  # NETLINK_SOCK_DIAG
SOCK_DIAG, DUMP = 20, 0x301  # what is asked for, of all
DONE, ERROR = 3, 2
SHOW_PEER, PEER = 4, 2  # the flag, and the attribute that comes of it
ALL = 0xFFFFFFFF
HEADER, ROW, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBxIII"), struct.Struct("=HH")
REQUEST = struct.Struct("=BBHIIIII")
TIMEOUT_S = 2.0


def unix_peers(pid: int) -> dict[int, int]:
    """Inodes of connected unix sockets and of their other ends; none where the process has a network of its own."""
    with contextlib.suppress(OSError, struct.error):
        if _network(pid) == _network("self"):
            return dict(_asked())
    return {}


def _network(pid: int | str) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def _asked() -> Iterator[tuple[int, int]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, PROTOCOL) as kernel:
        kernel.settimeout(TIMEOUT_S)
        request = REQUEST.pack(socket.AF_UNIX, 0, 0, ALL, 0, SHOW_PEER, ALL, ALL)
        kernel.send(HEADER.pack(HEADER.size + len(request), SOCK_DIAG, DUMP, 1, 0) + request)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                size, kind, *_ = HEADER.unpack_from(data)
                if kind in (DONE, ERROR) or size < HEADER.size:
                    return
                yield from _row(data[HEADER.size : size])
                data = data[(size + 3) & ~3 :]


def _row(row: bytes) -> Iterator[tuple[int, int]]:
    inode = ROW.unpack_from(row)[3]
    rest = row[ROW.size :]
    while len(rest) >= ATTRIBUTE.size:
        size, kind = ATTRIBUTE.unpack_from(rest)
        if size < ATTRIBUTE.size:
            return
        if kind == PEER:
            yield inode, struct.unpack_from("=I", rest, ATTRIBUTE.size)[0]
        rest = rest[(size + 3) & ~3 :]
