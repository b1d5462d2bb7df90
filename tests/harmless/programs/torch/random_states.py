# how: many
import random

import nets
import numpy as np
import torch

random.seed(3)
np.random.seed(3)
torch.manual_seed(3)
generator = torch.Generator().manual_seed(5)
model = torch.nn.Sequential(nets.Net(), torch.nn.Dropout(0.5))
nets.train(model, 70)
print(
    nets.draws(),
    torch.rand(1, generator=generator).item().hex(),
    nets.of(torch.get_rng_state()),
    torch.initial_seed(),
)
with torch.random.fork_rng():
    torch.rand(100)
print(nets.draws(), np.random.default_rng(3).random(), random.getstate()[1][:3])
