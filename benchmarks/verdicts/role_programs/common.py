"""Between the roles: requests, the group by which weights are sent, and names of files."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

SHARED = Path(os.environ["ROLES_SHARED"])
CASE = os.environ["ROLES_CASE"]
PORTS = {name: int(port) for name, port in json.loads(os.environ["ROLES_PORTS"]).items()}
QUIET_S = float(os.environ.get("ROLES_QUIET", "45"))
STEPS = 10**6
BACKEND = os.environ.get("ROLES_BACKEND", "gloo")
DEVICE = "cuda" if BACKEND == "nccl" else "cpu"  # of the one GPU that a role sees


def begun() -> None:
    """Says that the stall, or the quiet phase, begins now."""
    (SHARED / "begun").write_text(str(time.time()))


def request(role: str, path: str, /, **body: Any) -> Request:
    return Request(f"http://127.0.0.1:{PORTS[role]}{path}", json.dumps(body).encode(), method="POST")


def model(more: int = 0) -> torch.nn.Module:
    """`more`: rows that its last layer has, as a vocabulary that was padded on one side."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64 + more))
    return net.to(DEVICE)


def arrived() -> None:
    """Waits for what the device has been asked to do."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def weights_group(port: str, rank: int, size: int) -> dist.ProcessGroup:
    """A group of trainer and engines, beside the trainer's own."""
    limit = timedelta(minutes=30)
    store = dist.TCPStore("127.0.0.1", PORTS[port], size, rank == 0, limit, wait_for_workers=False)
    store = dist.PrefixStore("weights", store)
    group, _ = c10d._new_process_group_helper(
        size, rank, [], BACKEND, store, group_name=f"weights-{port}", timeout=limit
    )
    c10d._world.pg_group_ranks[group] = {i: i for i in range(size)}
    return group
