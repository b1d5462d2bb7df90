"""The driver gives each call five seconds and tries again: the reward worker waits for a lock that a failed call kept.

Modelled on the retry loops around ray.get in open-instruct and verl, which log at debug level.

Without a tool: nothing, at any level above debug.

Promise:
  outcome: hung (proven, suspected)
  class: local_lock_deadlock
  guilty: [reward]
  code: self.lock.acquire()
"""

import threading

import ray
from ray.exceptions import GetTimeoutError


@ray.remote
class Reward:
    def __init__(self):
        self.lock = threading.Lock()

    def score(self, sample):
        self.lock.acquire()
        if sample == 3:
            return 0.0  # too long a sample: no release
        self.lock.release()
        return 1.0


ray.init()
reward = Reward.options(name="reward", num_cpus=0).remote()
for sample in range(100):
    asked = reward.score.remote(sample)
    while True:
        try:
            ray.get(asked, timeout=5)
            break
        except GetTimeoutError:
            continue
