# how: many
import nets
import torch
import torch.optim.optimizer as optimizers
from torch.nn.modules import module as modules

model, order = nets.Net(), []
note = lambda name: lambda *a, **k: order.append(name)  # noqa: E731
handles = [
    modules.register_module_forward_pre_hook(note("global pre")),
    modules.register_module_forward_hook(note("global forward")),
    modules.register_module_full_backward_hook(note("global backward")),
    modules.register_module_full_backward_pre_hook(note("global backward pre")),
    model.register_forward_pre_hook(note("pre")),
    model.register_forward_pre_hook(note("pre first"), prepend=True),
    model.register_forward_pre_hook(note("pre with"), with_kwargs=True),
    model.register_forward_hook(note("forward")),
    model.register_forward_hook(note("forward always"), always_call=True),
    model.register_full_backward_hook(note("backward")),
    model.register_full_backward_pre_hook(note("backward pre")),
    model.a.weight.register_hook(note("tensor")),
    model.a.weight.register_post_accumulate_grad_hook(note("accumulated")),
    optimizers.register_optimizer_step_post_hook(note("global step")),
]
_, optimizer = nets.train(model, 1)
optimizer.register_step_pre_hook(note("step pre"))
optimizer.register_step_post_hook(note("step post"))
order.clear()
nets.train(model, 2, optimizer)
print(order)
for handle in handles:
    handle.remove()
order.clear()
nets.train(model, 2, optimizer)
print(order, len(modules._global_forward_hooks), len(model._forward_hooks))
