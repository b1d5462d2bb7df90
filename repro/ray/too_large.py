"""The rollout engine asks for four accelerators, and no machine of the cluster has more than two.

No public report: a setting that was written for larger machines.

Without a tool: a line of the autoscaler's every minute, among all that the job prints.

Promise:
  outcome: hung (proven)
  class: actor_unschedulable
  guilty: [rollout]
  code: ray.get(rollout.generate.remote(step))
"""

import ray


@ray.remote
class Rollout:
    def generate(self, step):
        return [step] * 4


ray.init()
rollout = Rollout.options(name="rollout", num_cpus=0, resources={"accelerator": 4}).remote()
for step in range(100):
    samples = ray.get(rollout.generate.remote(step))
    print("round", step, len(samples), flush=True)
