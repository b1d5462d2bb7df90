# how: rank
# slow
import time

from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, n):
        time.sleep(0 if n == 0 else 30)
        return n


loader = iter(DataLoader(Slow(), num_workers=1, timeout=2))
print(next(loader))
try:
    next(loader)
except RuntimeError as error:
    print(str(error)[:40])
