# how: many
import nets
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

nets.train(nets.Net(), 80)
with FakeTensorMode():
    model = nets.Net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(60):
        out = model(torch.ones(2, 8))
        out.sum().backward()
        optimizer.step()
    print(type(out).__name__, out.shape, model.a.weight.grad.shape)
print(nets.train(nets.Net(), 3)[0])
