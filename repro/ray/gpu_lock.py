"""Trainer and rollout share a GPU and take turns by a lock; the trainer keeps it while it waits for samples that need it.

Modelled on colocated engines of ms-swift and verl, which wake and sleep by turns.

Without a tool: silence in the second round, both processes idle.

Promise:
  outcome: hung (proven)
  class: actor_call_cycle
  guilty: [trainer]
  code: ray.get(rollout.generate.remote())
"""

import asyncio

import ray


@ray.remote
class Turns:
    def __init__(self):
        self.lock = asyncio.Lock()

    async def acquire(self):
        await self.lock.acquire()

    async def release(self):
        self.lock.release()


@ray.remote
class Rollout:
    def __init__(self, turns):
        self.turns = turns

    def generate(self):
        ray.get(self.turns.acquire.remote())
        ray.get(self.turns.release.remote())
        return [1, 2, 3]


@ray.remote
class Trainer:
    def fit(self, turns, rollout):
        ray.get(rollout.generate.remote())
        ray.get(turns.acquire.remote())
        ray.get(rollout.generate.remote())
        ray.get(turns.release.remote())


ray.init()
turns = Turns.options(name="turns", num_cpus=0).remote()
rollout = Rollout.options(name="rollout", num_cpus=0).remote(turns)
trainer = Trainer.options(name="trainer", num_cpus=0).remote()
ray.get(trainer.fit.remote(turns, rollout))
