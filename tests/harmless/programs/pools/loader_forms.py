# how: many
import nets
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)


class Streams(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id if info else 9, 12)


class Rows(TensorDataset):
    def __getitems__(self, indices):
        return [self.tensors[0][i] for i in indices]


data = Rows(torch.arange(24.0).view(12, 2))
print([b.tolist() for b in DataLoader(Streams(), 4, num_workers=2)], list(DataLoader(Streams(), None)))
print([nets.of(b) for b in DataLoader(data, sampler=WeightedRandomSampler([1.0] * 12, 5), batch_size=2)])
print([nets.of(b) for b in DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 5, False))])
print([b for b in DataLoader(range(4), collate_fn=lambda rows: rows, batch_size=3, drop_last=True)])
iterator = iter(DataLoader(data, 6, num_workers=1, prefetch_factor=2, pin_memory=False))
print(
    next(iterator).shape,
    type(iterator).__name__,
    len(iterator),
    next(iterator) is not None,
    next(iterator, "none"),
)
a, b = torch.utils.data.random_split(data, [5, 7])
print(list(a.indices), next(iter(DataLoader(b, 7)))[0].tolist(), nets.draws())
