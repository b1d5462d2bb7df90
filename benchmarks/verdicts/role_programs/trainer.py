"""A trainer under torchrun that asks engines for rollouts, and sends them its weights by a group of their own."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import torch
import torch.distributed as dist
from common import (
    BACKEND,
    CASE,
    DEVICE,
    PORTS,
    QUIET_S,
    SHARED,
    STEPS,
    arrived,
    begun,
    model,
    request,
    weights_group,
)
from torch.nn.parallel import DistributedDataParallel

ENGINES = [name for name in PORTS if name.startswith("engine")]


def ask(engine: str, path: str, /, **body: object) -> float:
    try:
        return json.loads(urlopen(request(engine, path, **body)).read())["value"]
    except HTTPError:
        return 0.0


def wait_for(engine: str) -> None:
    while True:
        try:
            urlopen(request(engine, "/health")).read()
            return
        except URLError:
            if CASE in ("worker_not_ready", "slow_worker") and not (SHARED / "begun").exists():
                begun()
            time.sleep(0.5)


def connect(rank: int) -> dist.ProcessGroup | None:
    pool = ThreadPoolExecutor()
    size = 1 + len(ENGINES) + (CASE == "one_too_many")
    if CASE in ("one_too_many", "slow_join", "join_refused") and rank == 0:
        begun()
    if CASE == "opposite_order":
        order = ENGINES if rank == 0 else ENGINES[::-1]
        if rank == 0:
            begun()
        for number, engine in enumerate(order):
            pool.submit(ask, engine, "/join", port=f"weights{rank}", rank=number + 1, size=size)
            time.sleep(1.5)
        return weights_group(f"weights{rank}", 0, size)
    if rank > 0:
        return None
    for number, engine in enumerate(ENGINES):
        pool.submit(ask, engine, "/join", port="weights", rank=number + 1, size=size)
    return weights_group("weights", 0, size)


def send(net: torch.nn.Module, group: dist.ProcessGroup, step: int) -> None:
    pool = ThreadPoolExecutor()
    if CASE in ("update_refused", "extra_tensor", "asked_while_updating", "slow_pack") and step == 3:
        begun()
    if CASE in ("refused_first", "other_sizes"):
        begun()
    if CASE == "paused" and step == 3:
        ask(ENGINES[0], "/pause")
        begun()
    if CASE in ("paused_writer", "drained_update") and step == 3:
        if CASE == "paused_writer":
            ask(ENGINES[0], "/pause")
            begun()
        # A rollout that is on its way when new weights come.
        pool.submit(ask, ENGINES[0], "/generate", prompt=[3.0] * 64)
        time.sleep(1)
    sent = [pool.submit(ask, engine, "/update_weights", step=step) for engine in ENGINES]
    if CASE == "asked_while_updating" and step == 3:
        time.sleep(1)
        urlopen(request(ENGINES[0], "/health")).read()
    if CASE == "slow_pack" and step == 3:
        time.sleep(QUIET_S)
    for parameter in net.parameters():
        dist.broadcast(parameter.data, 0, group=group)
    arrived()
    for each in sent:
        each.result()


def main() -> None:
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    net = model()
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    written, gate = threading.Event(), torch.zeros(1, device=DEVICE)
    for engine in ENGINES:
        wait_for(engine)
    group = connect(rank)
    for step in range(1, STEPS):
        if rank == 0:
            if CASE == "engine_loop_dies" and step == 3:
                begun()
            answer = urlopen(request(ENGINES[0], "/generate", prompt=[float(step)] * 64))
            gate.fill_(json.loads(answer.read())["value"])
        dist.broadcast(gate, 0)
        if CASE == "logger_lock" and step == 3 and rank == 1:
            begun()
            written.wait()
        if CASE in ("lost_key", "slow_key") and step == 3 and rank == 0:
            store = dist.TCPStore("127.0.0.1", PORTS["weights0"], None, False, timedelta(minutes=30))
            begun()
            store.get("weights_loaded")
        if CASE == "skipped_gather" and step == 3:
            if rank == 0:
                begun()
                whole = [torch.empty(64, device=DEVICE) for _ in range(2)]
                dist.all_gather(whole, torch.ones(64, device=DEVICE))
            else:
                dist.barrier()
        ddp(gate.clamp(-1, 1).expand(8, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and group is not None:
            send(net, group, step)
        if CASE == "evaluation" and step == 3 and rank == 1:
            begun()
            time.sleep(QUIET_S)
        dist.barrier()
    (SHARED / "over").touch()


if __name__ == "__main__":
    main()
