"""Quiet phases in which a rank waits for the world outside the job: uploads, downloads, services."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from urllib.parse import urlencode

import torch
from job import Job, naps, shape
from torch.utils.data import DataLoader, IterableDataset

PORT = int(os.environ.get("QUIET_SERVICE", "0"))


def ask(what: str, timeout: float | None = 600.0, **options: object) -> bytes:
    url = f"http://127.0.0.1:{PORT}/{what}?{urlencode(options)}"
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read()


@shape()
def late_answer(job: Job) -> None:
    if job.is_quiet_one:
        ask("late", timeout=job.draw.choice((None, 60.0, 600.0)), s=job.seconds)


@shape()
def trickling_download(job: Job) -> None:
    pieces = job.draw.choice((2, 3, 5, 20, 100))
    if not job.is_quiet_one:
        return
    url = f"http://127.0.0.1:{PORT}/trickle?s={job.seconds}&pieces={pieces}"
    with urllib.request.urlopen(url, timeout=600) as body, (job.scratch / "download").open("wb") as file:
        while piece := body.read1(4096):
            file.write(piece)


@shape()
def retried_download(job: Job) -> None:
    """Refused with 503 for a while: doubled pauses, with jitter."""
    pause, key = 0.5, f"{job.draw.random()}-{job.scratch}"
    while job.is_quiet_one:
        try:
            ask("busy", s=job.seconds, key=key)
            return
        except urllib.error.HTTPError:
            time.sleep(pause * job.draw.uniform(0.8, 1.2))
            pause = min(2 * pause, 16)


@shape()
def slow_upload(job: Job) -> None:
    """The receiver reads slowly: the sender is blocked in send."""
    if not job.is_quiet_one:
        return
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    connection.request("POST", "/", bytes(40_000_000), {"X-Seconds": str(job.seconds)})
    connection.getresponse().read()


@shape()
def upload_in_naps(job: Job) -> None:
    """Hashes a part, sends nothing for a moment, and so on: a rate-limited upload of a checkpoint."""
    until = time.monotonic() + job.seconds
    nap = job.draw.choice((0.02, 0.2, 1.0))
    while job.is_quiet_one and time.monotonic() < until:
        hashlib.sha256(bytes(200_000)).hexdigest()
        time.sleep(nap)


@shape()
def long_poll(job: Job) -> None:
    """Each request ends in a timeout of the client's, until one is answered."""
    until = time.monotonic() + job.seconds
    while job.is_quiet_one:
        try:
            ask("late", timeout=job.draw.choice((2.0, 5.0)), s=max(until - time.monotonic(), 0))
            return
        except (TimeoutError, urllib.error.URLError):
            continue


@shape()
def heartbeats_on_a_socket(job: Job) -> None:
    """A lease on a raw socket, from which a line comes now and then."""
    if not job.is_quiet_one:
        return
    with socket.create_connection(("127.0.0.1", PORT)) as server:
        server.sendall(f"GET /trickle?s={job.seconds}&pieces=3 HTTP/1.0\r\n\r\n".encode())
        while server.recv(4096):
            pass


@shape()
def service_that_comes_up_late(job: Job) -> None:
    """Connections are refused until the service is there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    until, pause = time.monotonic() + job.seconds, job.draw.choice((0.3, 2.0, 6.0))
    while job.is_quiet_one and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(pause)


@shape()
def requests_in_asyncio(job: Job) -> None:
    async def one(seconds: float) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        writer.write(f"GET /late?s={seconds} HTTP/1.0\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def all_of_them() -> None:
        await asyncio.gather(*(one(job.seconds * share) for share in (0.3, 0.9, 1.0)))

    if job.is_quiet_one:
        asyncio.run(all_of_them())


@shape()
def requests_in_threads(job: Job) -> None:
    if not job.is_quiet_one:
        return
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, "late", s=job.seconds * share) for share in (0.2, 0.6, 1.0)]
        for answer in as_completed(asked):
            answer.result()


@shape()
def rate_limited_judge(job: Job) -> None:
    """Calls of a paid service, some a minute."""
    calls = job.draw.choice((2, 4, 10))
    for _ in range(calls if job.is_quiet_one else 0):
        ask("late", s=0.05)
        time.sleep(job.seconds / calls)


@shape()
def stream_with_pauses(job: Job) -> None:
    """Data come as they are made; a batch waits for its last row."""

    class Stream(IterableDataset):
        def __iter__(self):
            url = f"http://127.0.0.1:{PORT}/trickle?s={job.seconds}&pieces=8"
            with urllib.request.urlopen(url, timeout=600) as rows:
                for row in rows:
                    yield torch.full((64,), float(len(row)), device="cpu")  # a worker must not touch a GPU

    for _ in DataLoader(Stream(), batch_size=4, num_workers=job.draw.choice((0, 1))):
        job.step()


@shape(1)
def paused_request_loop(job: Job) -> None:
    """A worker of an inference service asks for the next request every so often, and mostly there is none."""
    for _ in range(3):
        naps(job, job.seconds / 3, 0.05, 0.5)
        with torch.no_grad():
            job.model(torch.randn(1, 64))
