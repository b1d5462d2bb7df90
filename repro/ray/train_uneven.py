"""Ray Train: worker 1's share of the data is one batch shorter; its function returns while worker 0 waits for its gradients.

Modelled on ray-project/ray reports of TorchTrainer that hangs at the end of an epoch with uneven dataset shards.

Without a tool: the run does not end; gloo's timeout half an hour later.

Promise:
  after_s: 40
  outcome: hung (proven)
  class: missing_rank
  guilty: [RayTrainWorker rank 1]
  peers: .backward()
"""

import ray.train
import torch
from ray.train.torch import TorchTrainer
from torch.nn.parallel import DistributedDataParallel


def train():
    rank = ray.train.get_context().get_world_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for _ in range(6 - rank):
        model(torch.randn(2, 4)).sum().backward()


trainer = TorchTrainer(
    train, scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
)
trainer.fit()
