# how: many
import nets
import torch

model = nets.Net()
seen = []
out = model(torch.ones(2, 8))
out.register_hook(lambda g: seen.append(nets.of(g)))
torch.autograd.graph.register_multi_grad_hook(
    [model.a.weight, model.b.weight], lambda grads: seen.append(len(grads))
)
out.grad_fn.register_hook(lambda *a: seen.append("node"))
out.grad_fn.register_prehook(lambda *a: seen.append("node pre"))
out.sum().backward()
with torch.autograd.graph.allow_mutation_on_saved_tensors():
    model(torch.ones(2, 8)).sum().backward()
print(seen)
