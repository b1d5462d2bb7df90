"""One long answer keeps a rollout worker busy for minutes; its peers wait in a collective, the trainer for all of them.

Healthy twin of uneven_rollouts.py.

Promise:
  outcome: healthy
"""

import socket

import ray
import torch
import torch.distributed as dist


@ray.remote
class Rollout:
    def join(self, address, rank, world_size):
        self.rank = rank
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)

    def generate(self, tokens):
        state = 1
        for _ in range(tokens):
            state = (state * 1103515245 + 12345) % 2**31
        dist.all_reduce(torch.tensor([float(state)]))
        return state


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


ray.init()
rollouts = [Rollout.options(name=f"rollout-{rank}", num_cpus=0).remote() for rank in range(2)]
address = f"tcp://127.0.0.1:{free_port()}"
ray.get([r.join.remote(address, rank, 2) for rank, r in enumerate(rollouts)])
ray.get([rollouts[0].generate.remote(10**10), rollouts[1].generate.remote(10)])
