# how: many
import nets
import torch

model = torch.nn.utils.skip_init(torch.nn.Linear, 8, 8)
torch.nn.init.eye_(model.weight)
torch.nn.init.zeros_(model.bias)
print(nets.train(model, 3)[0])
print(nets.of(torch.func.functionalize(lambda x: x.add_(1).mul(2))(torch.ones(3))))
