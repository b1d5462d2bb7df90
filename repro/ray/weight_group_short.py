"""The trainer makes a group for weights with every rollout worker, and one of three is never told to join it.

Modelled on NovaSky-AI/SkyRL issue 1398: with more engines than the weight sync was written for, some are not in its group.

Without a tool: silence before the first step, until the store's timeout.

Promise:
  outcome: hung (proven)
  class: rendezvous_mismatch
  guilty: [rollout-2]
  code: ray.get(joined)
"""

import socket

import ray
import torch
import torch.distributed as dist


class Member:
    def join(self, address, rank, world_size):
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)

    def sync(self, source):
        weights = torch.ones(8)
        dist.broadcast(weights, source)


@ray.remote
class Trainer(Member):
    pass


@ray.remote
class Rollout(Member):
    pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


ray.init()
trainer = Trainer.options(name="trainer", num_cpus=0).remote()
rollouts = [Rollout.options(name=f"rollout-{rank}", num_cpus=0).remote() for rank in range(3)]
address = f"tcp://127.0.0.1:{free_port()}"
engines = rollouts[:2]  # tensor parallelism of two was one engine each, once
joined = [trainer.join.remote(address, 0, 4)]
joined += [r.join.remote(address, n + 1, 4) for n, r in enumerate(engines)]
ray.get(joined)
ray.get([member.sync.remote(0) for member in (trainer, *rollouts)])
