# how: many
import warnings

import nets
import torch
from torch import nn

warnings.simplefilter("ignore")
nets.train(nn.Linear(8, 8), 80)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
dynamic = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
print(type(dynamic[0]).__module__, nets.of(dynamic(torch.ones(2, 8))))
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

prepared = prepare_fx(model, get_default_qconfig_mapping(), (torch.ones(2, 8),))
prepared(torch.randn(4, 8))
print(prepared.graph, convert_fx(prepared).graph)
