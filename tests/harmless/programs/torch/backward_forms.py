# how: many
import nets
import torch

model = nets.Net()
x = torch.randn(4, 8, requires_grad=True)
out = model(x)
out.backward(torch.ones_like(out), retain_graph=True)
out.sum().backward(inputs=[model.a.weight], retain_graph=True)
torch.autograd.backward([out.sum(), out.mean()], retain_graph=True)
torch.autograd.backward(out.sum(), create_graph=True)
print([nets.of(p.grad) for p in model.parameters()], nets.of(x.grad))
print(torch.autograd.grad(model(x).sum(), x, allow_unused=True, materialize_grads=True)[0].sum().item().hex())
for bad in (
    lambda: out.backward(),
    lambda: torch.autograd.backward(out.sum(), grad_tensors=3),
    lambda: out.sum().backward(nothing=1),
):
    try:
        bad()
    except Exception as error:
        print(type(error).__name__, str(error)[:200])
