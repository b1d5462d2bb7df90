# how: many
import nets
import torch
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

model = nets.Net()
nets.train(model, 80)
params = dict(model.named_parameters())
grads = grad(lambda p, x: functional_call(model, p, (x,)).sum())(params, torch.ones(2, 8))
print({n: nets.of(g) for n, g in grads.items()})
per_sample = vmap(grad(lambda p, x: functional_call(model, p, (x,)).sum()), in_dims=(None, 0))(
    params, torch.randn(3, 8)
)
print({n: nets.of(g) for n, g in per_sample.items()})
print(nets.of(*jvp(lambda x: model(x), (torch.ones(8),), (torch.ones(8),))))
print(
    nets.of(jacrev(model)(torch.ones(8))), nets.of(hessian(lambda x: model(x).square().sum())(torch.ones(8)))
)
