"""Open descriptors of a process: sockets with their peer, pipes, and files with the place that was reached."""

from __future__ import annotations

import re
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.kernel.unix_peers import unix_peers
from nsadiag.evidence.secrets.masking import mask_text

MOST_SCANNED = 4096
MOST_LISTED = 64
TABLE_BYTES = 1 << 21  # of /proc/<pid>/net/tcp, which on a busy host is long
TCP_STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT",
    7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING",
}  # fmt: skip
ACCEPTS = 1 << 16  # a flag of unix sockets that listen
INODE = re.compile(r"(socket|pipe):\[(\d+)\]")
# What a stuck process most often waits for comes first where there is not room for all.
ORDER = {"tcp": 0, "pipe": 1, "file": 2, "unix": 3, "socket": 4}


def descriptors(pid: int) -> dict[str, Any]:
    """Their number, how many of each kind, and what the main ones are; `denied` where we may not look."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        numbers = sorted(int(entry.name) for entry in folder.iterdir())
    except OSError as error:
        return {"denied": error.strerror}
    sockets = sockets_of(pid)
    rows = [row for number in numbers[:MOST_SCANNED] if (row := _descriptor(pid, number, sockets))]
    listed = sorted((r for r in rows if r["kind"] in ORDER), key=lambda r: (ORDER[r["kind"]], r["fd"]))
    return {
        "count": len(numbers),
        "kinds": dict(Counter(row["kind"] for row in rows)),
        "open": listed[:MOST_LISTED],
        "not_listed": max(len(listed) - MOST_LISTED, 0),
    }


def _descriptor(pid: int, number: int, sockets: dict[int, dict[str, Any]]) -> dict[str, Any] | None:
    try:
        goal = str(Path(f"/proc/{pid}/fd/{number}").readlink())
    except OSError:
        return None
    match = INODE.fullmatch(goal)
    if match and match[1] == "socket":
        return {"fd": number, **sockets.get(int(match[2]), {"kind": "socket"})}
    if match:
        return {"fd": number, "kind": "pipe", "inode": int(match[2])}
    if goal.startswith("anon_inode:"):
        return {"fd": number, "kind": goal.removeprefix("anon_inode:").strip("[]")}
    if goal.startswith(("/dev/", "/proc/")):
        return {"fd": number, "kind": "device"}
    return {"fd": number, "kind": "file", "path": mask_text(goal), "position": _position(pid, number)}


def _position(pid: int, number: int) -> int | None:
    """In bytes from the beginning; it moves while a checkpoint is written or data are read."""
    try:
        first = Path(f"/proc/{pid}/fdinfo/{number}").read_text().splitlines()[0]
        return int(first.removeprefix("pos:"))
    except (OSError, ValueError, IndexError):
        return None


def sockets_of(pid: int) -> dict[int, dict[str, Any]]:
    """By inode, as the process's own network namespace sees them."""
    found: dict[int, dict[str, Any]] = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for words in _table(pid, name):
            local, peer, state, inode = words[1], words[2], int(words[3], 16), int(words[9])
            found[inode] = {
                "kind": "tcp",
                "local": _address(local, family),
                "peer": None if state == 10 else _address(peer, family),
                "state": TCP_STATES.get(state, str(state)),
                "unsent": int(words[4].split(":")[0], 16),
                "unread": int(words[4].split(":")[1], 16),
            }
    if unix := _table(pid, "unix"):
        peers = unix_peers(pid)
        for words in unix:
            number = int(words[6])
            found[number] = {
                "kind": "unix",
                "path": words[7] if len(words) > 7 else None,
                "inode": number,
                "peer_inode": peers.get(number, 0),
                "state": "LISTEN" if int(words[3], 16) & ACCEPTS else "",
            }
    return found


def _table(pid: int, name: str) -> list[list[str]]:
    try:
        with Path(f"/proc/{pid}/net/{name}").open("rb") as file:
            lines = file.read(TABLE_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
    fewest = {"unix": 7}.get(name, 10)
    return [words for words in (line.split() for line in lines[1:]) if len(words) >= fewest]


def _address(text: str, family: int) -> str:
    """`127.0.0.1:29500` from `0100007F:733C`: words of four bytes in the machine's own order."""
    host, port = text.split(":")
    raw = b"".join(int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8))
    shown = socket.inet_ntop(family, raw)
    return f"[{shown}]:{int(port, 16)}" if family == socket.AF_INET6 else f"{shown}:{int(port, 16)}"
