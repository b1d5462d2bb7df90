# how: python
# slow
import sys

import torch.multiprocessing as mp


def work(rank):
    sys.exit(rank * 4)


if __name__ == "__main__":
    try:
        mp.start_processes(work, nprocs=2, start_method="fork")
    except mp.ProcessExitedException as error:
        print(error.exit_code, error.error_index)
