# how: many
import copy

import nets
import torch
from torch.func import functional_call, stack_module_state, vmap

models = [nets.Net() for _ in range(3)]
for model in models:
    nets.train(model, 30)
params, buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")
print(
    nets.of(
        vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(
            params, buffers, torch.ones(2, 8)
        )
    )
)
