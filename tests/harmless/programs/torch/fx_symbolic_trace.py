# how: many
import nets
import torch.fx
from torch import nn

model = nn.Linear(8, 8)
for _ in range(60):
    nets.train(model, 1)
print(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())).graph)
print(torch.fx.symbolic_trace(nets.Net()).graph)
