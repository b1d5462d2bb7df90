# how: many
import weakref

import nets
import seen
import torch
from torch import nn

model, other = nets.Net(), nets.Net()
_, optimizer = nets.train(model, 40)
nets.train(other, 3)
seen.say([weakref.getweakrefcount(p) for p in model.parameters()])
held = list(model.parameters())
for parameter in held:
    parameter.register_hook(lambda gradient: gradient * 2)
optimizer.zero_grad()
torch.utils.swap_tensors(model.a.bias, nn.Parameter(torch.ones(16)))
torch.__future__.set_swap_module_params_on_conversion(True)
try:
    for convert in (model.double, model.float, lambda: model.to(torch.bfloat16), model.float):
        convert()
        seen.say([a is b for a, b in zip(held, model.parameters(), strict=True)], model.a.weight.dtype)
        seen.say(nets.train(model, 2, x=torch.ones(8, 8, dtype=model.a.weight.dtype))[0])
    model.load_state_dict({name: value.clone() for name, value in other.state_dict().items()})
    seen.say([a is b for a, b in zip(held, model.parameters(), strict=True)])
finally:
    torch.__future__.set_swap_module_params_on_conversion(False)
seen.say(nets.train(model, 30, optimizer)[0], nets.digest(model))
