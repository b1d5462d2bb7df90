# how: many
import nets
import torch
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vmap,
)

model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
x, noise = torch.arange(32.0).reshape(4, 8) / 32, torch.ones(8)


def loss_of(weights, row):
    return functional_call(model, weights, (row,)).square().mean()


said = []
for step in range(60):
    weights = {name: p.detach() for name, p in model.named_parameters()}
    each = vmap(grad(loss_of), in_dims=(None, 0))(weights, x)  # a gradient for each sample
    optimizer.zero_grad()
    model(x).square().mean().backward()
    for name, p in model.named_parameters():
        norms = each[name].flatten(1).norm(dim=1)
        p.grad += 0.01 * (each[name] / (1 + norms.view(-1, *[1] * p.dim()))).mean(0)
    optimizer.step()
    if step % 20 == 0:
        said.append(nets.of(jacrev(model)(x[0]), jacfwd(model)(x[0]), *jvp(model, (x[0],), (noise,))))
        said.append(nets.of(hessian(lambda row: model(row).square().sum())(x[0])))
        output, linear = linearize(model, x[0])
        said.append(nets.of(output, linear(noise)))
        said.append(nets.of(vmap(model)(x), vmap(vmap(model))(x.expand(2, 4, 8))))
        said.append(nets.of(vmap(lambda r: model(r + torch.rand(8)), randomness="different")(x)))
print(*said, nets.digest(model), nets.draws())
models = [nets.Net() for _ in range(3)]
params, buffers = stack_module_state(models)


def ensemble_step(params):
    def one(p, b):
        return functional_call(models[0], (p, b), (x,)).square().mean()

    return {
        k: v - 0.1 * g
        for (k, v), g in zip(params.items(), vmap(grad(one))(params, buffers).values(), strict=True)
    }


for _ in range(20):
    params = ensemble_step(params)
print(nets.of(*params.values()))
