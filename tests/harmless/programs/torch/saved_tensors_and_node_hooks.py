# how: many
import nets
import seen
import torch
from torch.autograd import graph

model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
packed, fired = [], []
x = torch.ones(4, 8)


def pack(tensor):
    packed.append(tuple(tensor.shape))
    return tensor.clone()


for steps in (1, 60):
    nets.train(model, steps, optimizer, x=x)
    optimizer.zero_grad()
    with graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).square().mean()
    handles = [
        loss.grad_fn.register_hook(lambda inputs, outputs: fired.append(("hook", len(inputs), len(outputs)))),
        loss.grad_fn.register_prehook(lambda outputs: fired.append(("prehook", len(outputs)))),
        graph.register_multi_grad_hook(
            list(model.parameters()), lambda gradients: fired.append([g is None for g in gradients])
        ),
        graph.register_multi_grad_hook(
            list(model.parameters()), lambda gradient: fired.append("any"), mode="any"
        ),
    ]
    edge = graph.get_gradient_edge(model.a.weight)
    fired.append((edge.node.name(), edge.output_nr))
    loss.backward()
    optimizer.step()
    for handle in handles:
        handle.remove()
    seen.say(packed, fired)
    packed.clear()
    fired.clear()
    with graph.save_on_cpu():
        nets.train(model, 2, optimizer, x=x)
    with graph.allow_mutation_on_saved_tensors():
        y = model(x)
        z = y * y
        y.add_(1)
        z.sum().backward()
    try:
        with graph.disable_saved_tensors_hooks("none here"), graph.save_on_cpu():
            model(x)
    except RuntimeError as error:
        seen.say(error)
    with torch.autograd.set_multithreading_enabled(False):
        nets.train(model, 3, optimizer, x=x)
    seen.say(nets.digest(model), [p._version > 0 for p in model.parameters()])
