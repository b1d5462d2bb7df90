"""The trainer holds both accelerators and waits for the scores of a reward model that needs one: it is never placed.

No public report: what Ray's documentation of resources warns of, an actor that asks for what its own caller holds.

Without a tool: silence after the first round, and a line of the autoscaler's every minute.

Promise:
  outcome: hung (proven)
  class: actor_call_cycle
  guilty: [reward, trainer]
"""

import ray


@ray.remote
class Reward:
    def score(self, samples):
        return [1.0 for _ in samples]


@ray.remote
class Trainer:
    def fit(self):
        reward = Reward.options(name="reward", num_cpus=0, resources={"accelerator": 1}).remote()
        for step in range(100):
            scores = ray.get(reward.score.remote([step] * 4))
            print("round", step, scores, flush=True)


ray.init()
trainer = Trainer.options(name="trainer", num_cpus=0, resources={"accelerator": 2}).remote()
ray.get(trainer.fit.remote())
