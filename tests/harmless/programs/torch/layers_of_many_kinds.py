# how: many
import nets
import torch
from torch import nn

outs = []
outs.append(nn.LSTM(4, 5, 2)(torch.randn(3, 2, 4))[0])
outs.append(
    nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)(torch.randn(2, 3, 8))
)
outs.append(nn.MultiheadAttention(8, 2)(torch.randn(3, 2, 8), torch.randn(3, 2, 8), torch.randn(3, 2, 8))[0])
outs.append(nn.Conv2d(1, 2, 3)(torch.randn(1, 1, 5, 5)))
outs.append(nn.EmbeddingBag(10, 3)(torch.tensor([[1, 2], [3, 4]])))
outs.append(nn.CrossEntropyLoss()(torch.randn(3, 5), torch.tensor([0, 1, 2])))
sum(o.sum() for o in outs).backward()
print([nets.of(o) for o in outs], nets.draws())
lazy = nn.LazyLinear(3)
print(lazy(torch.ones(2, 4)).shape, type(lazy).__name__, nn.ModuleDict({"x": nn.ReLU()})["x"](torch.ones(1)))
