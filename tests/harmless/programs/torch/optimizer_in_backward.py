# how: many
import nets
import torch

model = nets.Net()
optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(60):
    model(torch.randn(8, 8)).square().mean().backward()
print(nets.digest(model), [p.grad is None for p in model.parameters()])
