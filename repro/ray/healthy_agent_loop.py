"""Many conversations run as coroutines of one agent loop, and one of them has a tool that takes ten minutes: the driver asks every five seconds.

Modelled on the agent loops of verl (verl-project/verl pull request 1138) and on TIGER-AI-Lab/verl-tool issue 83: the whole batch waits for
its longest trajectory.

Healthy twin of swallowed_timeouts.py.

Promise:
  after_s: 45
  outcome: healthy
"""

import asyncio
import time

import ray
from ray.exceptions import GetTimeoutError


@ray.remote(max_concurrency=16)
class Sandbox:
    def run(self, seconds):
        time.sleep(seconds)
        return seconds


@ray.remote
class AgentLoop:
    def __init__(self, sandbox):
        self.sandbox = sandbox

    async def converse(self, seconds):
        for _ in range(3):
            await asyncio.sleep(0.1)  # tokens of one turn
            await self.sandbox.run.remote(seconds)
        return seconds

    async def generate(self, tools):
        return await asyncio.gather(*(self.converse(seconds) for seconds in tools))


ray.init()
sandbox = Sandbox.options(name="sandbox", num_cpus=0).remote()
loop = AgentLoop.options(name="agent-loop", num_cpus=0).remote(sandbox)
for step in range(3):
    asked = loop.generate.remote([0.1] * 7 + [600 if step else 0.1])
    while True:
        try:
            print("step", step, len(ray.get(asked, timeout=5)), flush=True)
            break
        except GetTimeoutError:
            continue
