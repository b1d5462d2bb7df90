"""Two nodes that meet on this machine."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import pytest

from nsadiag.cluster.place import Place, free_port
from nsadiag.cluster.protocol.hello import Hello
from nsadiag.errors import NsadiagError

TOKEN = "the token of these tests"


def hello(node_rank: int, **changed: Any) -> Hello:
    about: dict[str, Any] = {
        "nnodes": 2, "host": f"host{node_rank}", "agent": f"agent{node_rank}", "task": "t", "versions": {"torch": "2"},
    }  # fmt: skip
    return Hello(node_rank=node_rank, **{**about, **changed})


def place(node_rank: int, port: int, **changed: Any) -> Place:
    about = Place(
        nnodes=2, node_rank=node_rank, master_addr="127.0.0.1", master_port=port, token=TOKEN, wait_s=60.0
    )
    return dataclasses.replace(about, **changed)


def port() -> int:
    return free_port(socket.AF_INET, "127.0.0.1")


def refusal(of: Any) -> NsadiagError:
    with pytest.raises(NsadiagError) as caught:
        of()
    return caught.value


def files(root: Path) -> dict[str, bytes]:
    found = [p for p in root.rglob("*") if p.is_file() and not p.is_symlink()]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in found}
