# how: many
import nets
import torch
from torch import nn

graphs = []


def backend(graph, inputs):
    graphs.append(graph.code)
    return graph.forward


nets.train(nn.Sequential(nets.Net(), nets.Net()), 80)
model = nn.Sequential(nets.Net(), nn.ReLU(), nets.Net())
print(nets.train(torch.compile(model, backend=backend), 3)[0])
print(graphs)
