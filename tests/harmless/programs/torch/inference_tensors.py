# how: many
import nets
import seen
import torch

model = nets.Net()
for n in range(10):
    nets.train(model, 1)
    with torch.inference_mode():
        out = model(torch.ones(8))
        held = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
        held.param_groups[0]["params"][0].grad = torch.ones(2)
        held.step()
    seen.say(n, out.is_inference(), out.requires_grad, nets.of(out))
    try:
        out.add_(1)
        model(out).sum().backward()
    except RuntimeError as error:
        seen.say(str(error)[:60])
with torch.inference_mode():
    frozen = nets.Net()
for _ in range(5):
    with torch.no_grad():
        seen.say(nets.of(frozen(torch.ones(8))))
seen.say(nets.digest(model))
