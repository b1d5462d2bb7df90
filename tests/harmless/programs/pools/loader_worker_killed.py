# how: rank
import os
import signal

import torch
from torch.utils.data import DataLoader, Dataset


class Bad(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, n):
        if n == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return n


try:
    for batch in DataLoader(Bad(), num_workers=1):
        pass
except (RuntimeError, OSError, EOFError):
    print("failed")
print(torch.ones(1))
