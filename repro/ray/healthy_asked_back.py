"""A coroutine of the trainer awaits a rollout that asks the trainer back; its actor has room for that call, and the rollout takes its time.

Healthy twin of asked_back.py: `max_concurrency=2`, and a generation that lasts ten minutes once it has the weights.

Promise:
  after_s: 30
  outcome: healthy
"""

import asyncio
import time

import ray


@ray.remote
class Rollout:
    def __init__(self, rank):
        self.rank, self.version = rank, 0

    def connect(self, trainer):
        self.trainer = trainer

    def generate(self, version):
        if self.rank == 1 and version > 1:
            self.version = ray.get(self.trainer.weights.remote())
            time.sleep(600)
        return [version] * 4


@ray.remote(max_concurrency=2)
class Trainer:
    async def weights(self):
        return 1

    async def fit(self, rollouts):
        for version in range(100):
            samples = await asyncio.gather(*(rollout.generate.remote(version) for rollout in rollouts))
            print("round", version, len(samples), flush=True)


ray.init()
rollouts = [Rollout.options(name=f"rollout-{rank}", num_cpus=0).remote(rank) for rank in range(2)]
trainer = Trainer.options(name="trainer", num_cpus=0).remote()
ray.get([rollout.connect.remote(trainer) for rollout in rollouts])
ray.get(trainer.fit.remote(rollouts))
