# how: python
# alone
# unordered
import os

import nets
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world_size):
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", store=dist.FileStore("store", world_size), rank=rank, world_size=world_size
    )
    model = torch.nn.parallel.DistributedDataParallel(nets.Net())
    print(
        f"[{rank}]",
        nets.train(model, x=torch.full((8, 8), float(rank)))[0],
        nets.digest(model.module),
        flush=True,
    )
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (2,), nprocs=2)
    print(sorted(os.listdir()) and "done")
