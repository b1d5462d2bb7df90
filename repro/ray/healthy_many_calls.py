"""Short calls in turn, each over in a fraction of a second: at no moment does any process do much.

Healthy: calls begin and end between the two looks.

Promise:
  outcome: healthy
"""

import time

import ray


@ray.remote
class Environment:
    def step(self, action):
        time.sleep(0.1)
        return action + 1


ray.init()
environments = [Environment.options(name=f"environment-{n}", num_cpus=0).remote() for n in range(2)]
state = 0
while True:
    state = max(ray.get([environment.step.remote(state) for environment in environments]))
