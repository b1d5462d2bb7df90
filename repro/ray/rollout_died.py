"""A rollout worker is killed while the trainer waits for samples from a queue: nobody holds a reference of its call any more.

Modelled on verl-project/verl issue 4921 (a worker died or was killed by an unexpected system error) with the asynchronous queues of
open-instruct: the trainer waits for a batch that will not come.

Without a tool: one line of Ray's on a dead worker, then silence.

Promise:
  outcome: hung (proven)
  class: actor_died
  guilty: [rollout]
  peers: self.samples.get()
"""

import os
import signal
import time

import ray
from ray.util.queue import Queue


@ray.remote
class Rollout:
    def run(self, samples):
        for step in range(100):
            if step == 3:
                os.kill(os.getpid(), signal.SIGKILL)  # the kernel's, when memory is short
            time.sleep(0.5)  # generation
            samples.put(step)


@ray.remote
class Trainer:
    def __init__(self, samples):
        self.samples = samples

    def fit(self):
        for _ in range(100):
            batch = self.samples.get()
            print("trained on", batch, flush=True)


ray.init()
samples = Queue(maxsize=8, actor_options={"num_cpus": 0})
rollout = Rollout.options(name="rollout", num_cpus=0).remote()
trainer = Trainer.options(name="trainer", num_cpus=0).remote(samples)
rollout.run.remote(samples)
ray.get(trainer.fit.remote())
