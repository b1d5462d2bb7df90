# how: rank
# needs: torchdata
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

torch.manual_seed(0)
loader = StatefulDataLoader(list(range(10)), batch_size=2, num_workers=1)
it = iter(loader)
print(next(it), next(it), sorted(loader.state_dict())[:3])
del it
print([b.tolist() for b in StatefulDataLoader(list(range(4)), batch_size=2)], torch.rand(1).item().hex())
