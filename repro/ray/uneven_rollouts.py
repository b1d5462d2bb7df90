"""Rollout workers gather lengths after each batch of prompts, and one has a batch less: it returns and the others wait.

Modelled on the uneven prompt shards of OpenRLHF and open-instruct.

Without a tool: silence until gloo's timeout.

Promise:
  outcome: hung (proven)
  class: missing_rank
  guilty: [rollout-2]
  peers: dist.all_reduce(lengths)
"""

import socket

import ray
import torch
import torch.distributed as dist


@ray.remote
class Rollout:
    def join(self, address, rank, world_size):
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)

    def generate(self, prompts):
        for prompt in prompts:
            lengths = torch.tensor([float(prompt)])
            dist.all_reduce(lengths)
        return len(prompts)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


ray.init()
rollouts = [Rollout.options(name=f"rollout-{rank}", num_cpus=0).remote() for rank in range(3)]
address = f"tcp://127.0.0.1:{free_port()}"
ray.get([r.join.remote(address, rank, 3) for rank, r in enumerate(rollouts)])
prompts = list(range(11))
shards = [prompts[rank::3] for rank in range(3)]
ray.get([r.generate.remote(shard) for r, shard in zip(rollouts, shards)])
