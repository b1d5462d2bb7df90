# how: many
import nets
import torch
import torch.fx
from torch import nn
from torch.fx.experimental.optimization import fuse
from torch.fx.passes.shape_prop import ShapeProp

nets.train(nn.Linear(8, 8), 80)
model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).eval()
fused = fuse(model)
print(fused.graph, nets.of(fused(torch.ones(1, 1, 4, 4))))
traced = torch.fx.symbolic_trace(nets.Net())
ShapeProp(traced).propagate(torch.ones(2, 8))
print([(n.name, n.meta["tensor_meta"].shape) for n in traced.graph.nodes if "tensor_meta" in n.meta])
