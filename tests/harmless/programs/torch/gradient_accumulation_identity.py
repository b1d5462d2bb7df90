# how: many
import nets
import torch

model = nets.Net()
model(torch.ones(2, 8)).sum().backward()
first = [p.grad for p in model.parameters()]
for _ in range(60):
    model(torch.ones(2, 8)).sum().backward()
print(
    [p.grad is g for p, g in zip(model.parameters(), first, strict=True)],
    [g.data_ptr() == p.grad.data_ptr() for p, g in zip(model.parameters(), first, strict=True)],
)
torch.optim.SGD(model.parameters(), 0.1).zero_grad(set_to_none=False)
print(
    [p.grad is g for p, g in zip(model.parameters(), first, strict=True)],
    [g.abs().sum().item() for g in first],
)
