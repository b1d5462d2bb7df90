# how: many
import nets
import torch

model = nets.Net()
nets.train(model, 30)
model.half().float().double()
print(nets.train(model, 3, x=torch.ones(2, 8, dtype=torch.double))[0], model.a.weight.dtype)
model.to(torch.bfloat16)
print(nets.train(model, 3, x=torch.ones(2, 8, dtype=torch.bfloat16))[0], nets.digest(model.float()))
