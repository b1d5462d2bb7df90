# how: many
import nets
import torch
from torch import nn
from torch.nn.utils import parametrize, prune, spectral_norm
from torch.nn.utils.parametrizations import orthogonal, weight_norm

model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
model[1].weight = model[0].weight
weight_norm(model[2])
orthogonal(model[3])
print(nets.train(model, 20)[0], nets.digest(model), sorted(model.state_dict()))


class Double(nn.Module):
    def forward(self, w):
        return w * 2


parametrize.register_parametrization(model[1], "weight", Double())
nets.train(model, 20)
parametrize.remove_parametrizations(model[1], "weight")
pruned = nn.Linear(8, 8)
prune.l1_unstructured(pruned, "weight", 0.5)
print(nets.train(pruned, 20)[0], nets.digest(model, pruned), type(model[1]).__name__, type(model[2]).__name__)
print(nets.train(spectral_norm(nn.Linear(8, 8)), 5)[0])
