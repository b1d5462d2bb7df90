# how: many
import random

import nets
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.drop = nets.Net(), nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(checkpoint(self.net, self.drop(x), use_reentrant=False))


model = Drops()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
own, said = torch.Generator().manual_seed(3), []
for step in range(60):
    state, python = torch.get_rng_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(step)
        first = nets.train(model, 1, optimizer)[0]
    same = torch.equal(state, torch.get_rng_state()) and python == random.getstate()
    x = torch.rand(4, 8, generator=own)
    second = nets.train(model, 1, optimizer, x=x)[0]
    said.append((same, first, second, random.random().hex(), torch.randperm(5).tolist()))
    if step % 7 == 0:
        torch.set_rng_state(state)
        said.append(torch.initial_seed() == torch.default_generator.initial_seed())
print(*said, sep="\n")
print(nets.digest(model), nets.draws(), nets.of(own.get_state()))
