"""The trainer's call waits for samples that a rollout worker makes for minutes: nobody runs anything in the trainer yet.

Healthy: what the call is given is on its way.

Promise:
  outcome: healthy
"""

import time

import ray


@ray.remote
class Rollout:
    def generate(self):
        time.sleep(3600)  # an environment that a person plays
        return [1, 2, 3]


@ray.remote
class Trainer:
    def fit(self, samples):
        return sum(samples)


ray.init()
rollout = Rollout.options(name="rollout", num_cpus=0).remote()
trainer = Trainer.options(name="trainer", num_cpus=0).remote()
print(ray.get(trainer.fit.remote(rollout.generate.remote())), flush=True)
