"""Every process of torch.multiprocessing.spawn reads its settings before it joins the process group, and one fails there.

On plain python: ProcessRaisedException with the traceback of process 1.

Promise:
  launch: python
  world_size: 2
  outcome: crashed
  class: rank_exception
  guilty_ranks: [1]
  code: "settings = json.loads(SETTINGS[rank])"
"""

import json

import torch.distributed as dist
import torch.multiprocessing

SETTINGS = ('{"lr": 0.1}', '{"lr": 0.1,}')


def train(rank: int) -> None:
    settings = json.loads(SETTINGS[rank])
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29731", rank=rank, world_size=2)
    print(settings["lr"], flush=True)
    dist.destroy_process_group()


def main() -> None:
    torch.multiprocessing.spawn(train, nprocs=2)


if __name__ == "__main__":
    main()
