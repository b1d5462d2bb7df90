# how: many
import traceback

import seen
from torch.utils.data import DataLoader, Dataset


class Bad(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, n):
        return {}[n]


for workers in (0, 1):
    try:
        next(iter(DataLoader(Bad(), num_workers=workers)))
    except KeyError:
        seen.say(seen.plain(traceback.format_exc()))
