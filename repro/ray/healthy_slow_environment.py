"""A rollout worker sleeps until its environment is ready, for ten minutes; the trainer waits for samples from a queue.

Healthy twin of rollout_died.py.

Promise:
  outcome: healthy
"""

import time

import ray
from ray.util.queue import Queue


@ray.remote
class Rollout:
    def run(self, samples):
        for step in range(100):
            time.sleep(0 if step < 2 else 600)
            samples.put(step)


@ray.remote
class Trainer:
    def fit(self, samples):
        for _ in range(100):
            print("trained on", samples.get(), flush=True)


ray.init()
samples = Queue(actor_options={"num_cpus": 0})
rollout = Rollout.options(name="rollout", num_cpus=0).remote()
trainer = Trainer.options(name="trainer", num_cpus=0).remote()
rollout.run.remote(samples)
ray.get(trainer.fit.remote(samples))
