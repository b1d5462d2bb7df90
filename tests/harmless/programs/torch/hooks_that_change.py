# how: many
import nets
import torch

model = nets.Net()
model.a.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
model.a.register_forward_hook(lambda m, args, out: out + 1)
model.b.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
model.b.weight.register_hook(lambda g: g * 1.5)
print(nets.train(model)[0], nets.digest(model))
with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
    print(nets.train(model)[0], nets.digest(model))
with torch.autograd.graph.save_on_cpu():
    print(nets.train(model)[0], nets.digest(model))
