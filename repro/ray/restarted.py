"""A worker dies and Ray restarts it; it wants to join the group that the others made with the one before it.

Modelled on ray-project/ray issue 46795 (stuck at the second iteration) and on actors with max_restarts in training loops.

Without a tool: a line on the restart, then silence until the store's timeout.

Promise:
  outcome: hung (proven)
  class: actor_call_cycle
  guilty: [trainer]
  code: ray.get(rollout.generate.remote())
"""

import os
import socket
import tempfile
from pathlib import Path

import ray
import torch
import torch.distributed as dist


def join(address, rank):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)


@ray.remote(max_restarts=1, max_task_retries=1)
class Rollout:
    def __init__(self, address, first):
        self.address, self.first = address, Path(first)

    def connect(self):
        join(self.address, 1)

    def generate(self):
        if not dist.is_initialized():
            join(self.address, 1)
        if self.first.exists():
            self.first.unlink()
            os._exit(1)
        dist.all_reduce(torch.ones(1))


@ray.remote
class Trainer:
    def fit(self, address, rollout):
        connected = rollout.connect.remote()
        join(address, 0)
        ray.get(connected)
        ray.get(rollout.generate.remote())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


ray.init()
address = f"tcp://127.0.0.1:{free_port()}"
first = tempfile.mkstemp()[1]  # there is no such file any more once the first life is over
rollout = Rollout.options(name="rollout", num_cpus=0).remote(address, first)
trainer = Trainer.options(name="trainer", num_cpus=0).remote()
ray.get(trainer.fit.remote(address, rollout))
