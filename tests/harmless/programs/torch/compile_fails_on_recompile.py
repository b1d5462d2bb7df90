# how: rank
# slow
import nets
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.inner(x))


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


whole, parts = Outer(), Outer()
whole.compile(backend="eager", fullgraph=True)
for block in parts.blocks:
    block.compile(backend="eager")
both = nn.ModuleList((whole, parts))
optimizer = torch.optim.SGD(both.parameters(), lr=0.01)
x = torch.ones(4, 8)


def step():
    optimizer.zero_grad()
    loss = whole(x).sum() + parts(x).sum()
    loss.backward()
    optimizer.step()
    return loss.item().hex()


print(step(), step())
with torch.compiler.set_stance("fail_on_recompile"):
    for _ in range(300):
        told = step()
print(told, nets.digest(both))
print(dict(torch._dynamo.utils.counters["stats"]), dict(torch._dynamo.utils.counters["graph_break"]))
