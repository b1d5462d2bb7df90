"""The driver asks rank 0 of the trainers to save a checkpoint, for which it gathers from all: the others were not asked.

Modelled on hiyouga/LlamaFactory and OpenRLHF reports of hangs in save_checkpoint with ZeRO-3 under Ray.

Without a tool: silence after the last step.

Promise:
  outcome: hung (proven)
  class: missing_rank
  guilty: [trainer-1]
  code: ray.get(trainers[0].save.remote())
  peers: dist.all_gather(shards, self.shard)
"""

import socket

import ray
import torch
import torch.distributed as dist


@ray.remote
class Trainer:
    def join(self, address, rank):
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
        self.shard = torch.ones(4)

    def step(self):
        dist.all_reduce(self.shard)

    def save(self):
        shards = [torch.empty(4), torch.empty(4)]
        dist.all_gather(shards, self.shard)
        return torch.cat(shards)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


ray.init()
trainers = [Trainer.options(name=f"trainer-{rank}", num_cpus=0).remote() for rank in range(2)]
address = f"tcp://127.0.0.1:{free_port()}"
ray.get([trainer.join.remote(address, rank) for rank, trainer in enumerate(trainers)])
for _ in range(3):
    ray.get([trainer.step.remote() for trainer in trainers])
ray.get(trainers[0].save.remote())
