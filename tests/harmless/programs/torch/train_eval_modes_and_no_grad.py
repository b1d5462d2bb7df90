# how: many
import nets
import torch
from torch import nn

model = nn.Sequential(nets.Net(), nn.Dropout(0.5), nn.BatchNorm1d(8))
nets.train(model, 20)
model.eval()
with torch.no_grad():
    print(nets.of(model(torch.ones(4, 8))))
with torch.inference_mode():
    out = model(torch.ones(4, 8))
    print(out.is_inference(), nets.of(out))
with torch.set_grad_enabled(False):
    print(model(torch.ones(4, 8)).requires_grad)
print(model.train().training, nets.train(model)[0], nets.digest(model), nets.draws())
