# how: many
# by-design: hooks
import nets
import seen

model = nets.Net()
_, optimizer = nets.train(model, 80)
for module in model.modules():
    seen.say(
        type(module).__name__,
        sorted(vars(module)),
        [len(getattr(module, n)) for n in sorted(vars(module)) if n.endswith("_hooks")],
    )
for name, parameter in model.named_parameters():
    seen.say(
        name,
        sorted(vars(parameter)),
        parameter._backward_hooks,
        parameter._post_accumulate_grad_hooks,
        parameter.grad_fn,
        parameter._version,
    )
seen.say(
    sorted(vars(optimizer)),
    type(optimizer.step).__name__,
    optimizer.step.__func__.__qualname__,
    sorted(vars(type(optimizer))),
)
