"""A rollout worker asks the trainer for weights while the trainer waits for its samples: the call is queued behind the trainer's own.

Modelled on OpenRLHF's and verl's hybrid loops, where workers pull weights from the trainer's actor (volcengine/verl issue 2705 shows what
one sees: nothing after `ray.get`).

Without a tool: silence after the first round.

Promise:
  outcome: hung (proven)
  class: actor_call_cycle
  guilty: [trainer, rollout-1]
  code: ray.get(self.trainer.weights.remote())
"""

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


@ray.remote
class Trainer:
    def weights(self):
        return 1

    def fit(self, rollouts):
        for version in range(100):
            samples = ray.get([rollout.generate.remote(version) for rollout in rollouts])
            print("round", version, len(samples), flush=True)


ray.init()
rollouts = [Rollout.options(name=f"rollout-{rank}", num_cpus=0).remote(rank) for rank in range(2)]
trainer = Trainer.options(name="trainer", num_cpus=0).remote()
ray.get([rollout.connect.remote(trainer) for rollout in rollouts])
ray.get(trainer.fit.remote(rollouts))
