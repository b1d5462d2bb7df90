# how: many
import nets
import torch

model = nets.Net()
nets.train(model, 80)
traced = torch.jit.trace(model, torch.ones(2, 8))
print(traced.graph, traced.code, [n for n, _ in traced.named_modules()])
print(torch.jit.freeze(torch.jit.script(model.eval())).graph)
