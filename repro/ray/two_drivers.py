"""Two drivers on one cluster each want all of its accelerators: the one that came second waits for ever.

Modelled on verl-project/verl issue 2705: main_ppo started by torchrun runs as many drivers as there are processes.

Without a tool: "The code stucks at ray.get(runner.run.remote(config))".

Promise:
  outcome: hung (suspected)
  class: actor_unschedulable
  guilty: [trainer]
  code: ray.get(trainer.fit.remote())
"""

import os
import subprocess
import sys

import ray


@ray.remote(resources={"accelerator": 2}, num_cpus=0)
class Trainer:
    def fit(self):
        return sum(range(10))


ray.init()
first = "SECOND" not in os.environ
trainer = Trainer.options(name="trainer").remote()
if first:
    ray.get(trainer.fit.remote())
    subprocess.run([sys.executable, __file__], env={**os.environ, "SECOND": "1"}, check=False)
ray.get(trainer.fit.remote())
