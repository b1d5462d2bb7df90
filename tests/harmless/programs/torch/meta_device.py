# how: many
import nets
import torch

with torch.device("meta"):
    model = nets.Net()
    out = model(torch.ones(2, 8))
    out.sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
print(out.device, model.a.weight.grad.device)
model.to_empty(device="cpu")
for parameter in model.parameters():
    torch.nn.init.ones_(parameter)
print(nets.train(model, 3)[0])
