# how: many
import nets
import torch

model = nets.Net()
_, optimizer = nets.train(model, 20)
model.b = torch.nn.Linear(16, 8)
nets.train(model, 20, optimizer)
model.a.weight.data = torch.zeros_like(model.a.weight)
model.register_buffer("extra", torch.ones(2))
model.add_module("late", torch.nn.ReLU())
del model.late
print(nets.train(model, 20, optimizer)[0], nets.digest(model), sorted(dict(model.named_parameters())))
