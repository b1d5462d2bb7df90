"""Generation, reward and training by turns, under one lock, with a server beside them that waits for an event all the time.

Healthy twin of gpu_lock.py.

Promise:
  outcome: healthy
"""

import asyncio
import threading
import time

import ray


@ray.remote
class Turns:
    def __init__(self):
        self.lock = asyncio.Lock()

    async def acquire(self):
        await self.lock.acquire()

    async def release(self):
        self.lock.release()


@ray.remote(max_concurrency=2)
class Server:
    def run(self):
        threading.Event().wait()


@ray.remote
class Worker:
    def __init__(self, turns):
        self.turns = turns

    def work(self, seconds):
        ray.get(self.turns.acquire.remote())
        time.sleep(seconds)
        ray.get(self.turns.release.remote())
        return seconds


ray.init()
turns = Turns.options(name="turns", num_cpus=0).remote()
server = Server.options(name="server", num_cpus=0).remote()
served = server.run.remote()
workers = [Worker.options(name=name, num_cpus=0).remote(turns) for name in ("rollout", "trainer")]
while True:
    ray.get([worker.work.remote(8) for worker in workers])
