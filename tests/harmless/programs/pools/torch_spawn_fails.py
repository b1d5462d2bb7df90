# how: python
# exits: 1
import time

import torch.multiprocessing as mp


def work(rank):
    if rank == 1:
        raise ValueError("in rank one")
    time.sleep(100)


if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
