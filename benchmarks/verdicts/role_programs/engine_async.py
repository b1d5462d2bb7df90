"""An inference engine like vLLM's: an event loop answers HTTP, and asks the core, a process of its own, by ZeroMQ."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import sys
from collections.abc import AsyncIterator
from urllib.request import urlopen

import core
import torch.distributed as dist
import zmq
import zmq.asyncio
from common import CASE, PORTS, QUIET_S, SHARED, begun, model, request, weights_group

ME = sys.argv[1]


class ReadersAndWriter:
    """Many hold it to read, one to write."""

    def __init__(self) -> None:
        self.readers, self.changed = 0, asyncio.Condition()

    @contextlib.asynccontextmanager
    async def to_read(self) -> AsyncIterator[None]:
        async with self.changed:
            self.readers += 1
        try:
            yield
        finally:
            async with self.changed:
                self.readers -= 1
                self.changed.notify_all()

    @contextlib.asynccontextmanager
    async def to_write(self) -> AsyncIterator[None]:
        async with self.changed:
            await self.changed.wait_for(lambda: not self.readers)
            yield


class Front:
    """Requests on their way to the core and back, and the group by which weights come."""

    def __init__(self) -> None:
        context = zmq.asyncio.Context()
        self.asks, self.answers = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self.asks.bind(core.address("asks"))
        self.answers.bind(core.address("answers"))
        self.weights, self.running = ReadersAndWriter(), asyncio.Event()
        self.running.set()
        self.waiting: dict[int, asyncio.Future] = {}
        self.model, self.group, self.asked = model(), None, 0

    async def take_answers(self) -> None:
        while True:
            number, value = await self.answers.recv_pyobj()
            self.waiting.pop(number).set_result(value)

    async def generate(self, prompt: list[float]) -> float:
        async with self.weights.to_read():
            await self.running.wait()
            self.asked += 1
            number = self.asked
            if CASE == "blocked_loop" and number == 3:
                begun()
                # A judge by the same model, asked while the loop can answer nobody.
                return json.loads(urlopen(request(ME, "/reward")).read())["value"]
            if CASE == "loop_in_thread" and number == 3:
                begun()
                await asyncio.to_thread(urlopen, f"http://127.0.0.1:{PORTS['outside']}/")
            if CASE in ("rollout_task_raises", "slow_rollout_task") and number == 3:
                return await self.rollouts(prompt)
            return await self.of_core(number, prompt)

    async def of_core(self, number: int, prompt: list[float]) -> float:
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        await self.asks.send_pyobj((number, prompt))
        return await answer

    async def rollouts(self, prompt: list[float]) -> float:
        groups: asyncio.Queue[float] = asyncio.Queue()
        begun()
        self.tasks = [asyncio.create_task(rollout(place, prompt, groups)) for place in range(2)]
        return sum([await groups.get() for _ in range(2)])

    def join(self, port: str, rank: int, size: int) -> None:
        self.group = weights_group(port, rank, size)

    def receive(self) -> None:
        for parameter in self.model.parameters():
            dist.broadcast(parameter.data, 0, group=self.group)

    async def update(self) -> None:
        async with self.weights.to_write():
            await asyncio.to_thread(self.receive)


async def rollout(place: int, prompt: list[float], groups: asyncio.Queue[float]) -> None:
    if place and CASE == "rollout_task_raises":
        raise RuntimeError("the sandbox has crashed")
    if place:
        await asyncio.sleep(QUIET_S)
    await groups.put(prompt[0])


async def answer(front: Front, path: str, told: dict) -> float:
    if path == "/generate":
        return await front.generate(told["prompt"])
    if path == "/join":
        await asyncio.to_thread(front.join, told["port"], told["rank"], told["size"])
    elif path == "/update_weights":
        await front.update()
    elif path == "/pause":
        front.running.clear()
    elif path == "/resume":
        front.running.set()
    return 0.0


async def main() -> None:
    front = Front()
    engine_core = multiprocessing.get_context("spawn").Process(target=core.run)
    engine_core.start()
    taking = asyncio.create_task(front.take_answers())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        sizes = [
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        ]
        told = json.loads(await reader.readexactly(sizes[0] if sizes else 0) or b"{}")
        value = await answer(front, head.split()[1], told)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps({"value": value}).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", PORTS[ME])
    (SHARED / f"{ME}.up").touch()
    await asyncio.gather(server.serve_forever(), taking)


if __name__ == "__main__":
    asyncio.run(main())
