# how: many
import nets
import torch
import torch.autograd.forward_ad as forward

model = nets.Net()
with forward.dual_level():
    out = model(forward.make_dual(torch.ones(2, 8), torch.ones(2, 8)))
    print(nets.of(forward.unpack_dual(out).tangent))
(g,) = torch.autograd.grad(model(torch.randn(2, 8)).square().sum(), [model.a.weight], create_graph=True)
g.square().sum().backward()
print([nets.of(p.grad) for p in model.parameters() if p.grad is not None])
print(torch.autograd.gradcheck(lambda x: x.sin(), torch.ones(2, dtype=torch.double, requires_grad=True)))
