# how: many
import nets
import torch
from torch.fx.experimental.proxy_tensor import make_fx

model = nets.Net()
nets.train(model, 80)


def loss(params, x):
    return torch.func.functional_call(model, params, (x,)).square().mean()


params = {n: p.detach() for n, p in model.named_parameters()}
print(make_fx(torch.func.grad(loss))(params, torch.ones(2, 8)).graph)
print(make_fx(loss, tracing_mode="fake")(params, torch.ones(2, 8)).code)
