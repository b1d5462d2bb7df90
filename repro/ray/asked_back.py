"""A coroutine of the trainer awaits a rollout that asks the trainer back, and its actor takes one call at a time.

Modelled on llumnix-project/llumnix-ray pull request 106, which raises `max_concurrency` of its actors so that they do not wait for each other:
`async def` alone makes no room, as a coroutine that awaits keeps its place.

Without a tool: silence after the first two rounds. healthy_asked_back.py is its healthy twin.

Promise:
  outcome: hung (proven)
  class: actor_call_cycle
  guilty: [trainer, rollout-1]
  code: ray.get(self.trainer.weights.remote())
"""

import asyncio

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
        return [version] * 4


@ray.remote(max_concurrency=1)
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
