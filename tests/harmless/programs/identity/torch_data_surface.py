# how: many
import seen
import torch.utils.data.dataloader as loader

seen.surface(loader)
for name in (
    "DataLoader",
    "_BaseDataLoaderIter",
    "_SingleProcessDataLoaderIter",
    "_MultiProcessingDataLoaderIter",
):
    seen.surface(getattr(loader, name))
