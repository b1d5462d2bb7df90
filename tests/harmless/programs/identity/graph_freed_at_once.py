# how: many
import gc
import weakref

import nets
import seen
import torch

gc.collect()
gc.disable()
model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(30):
    x = torch.randn(8, 8)
    y = model(x)
    loss = y.sum()
    refs = [weakref.ref(t) for t in (x, y, loss)]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del x, y, loss
    seen.say([r() is None for r in refs], end := "")
refs = [weakref.ref(t) for t in (model, optimizer, model.a, model.a.weight)]
del model, optimizer
seen.say([r() is None for r in refs])
gc.collect()
gc.enable()
seen.say([r() is None for r in refs])
