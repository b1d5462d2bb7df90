# how: rank
import sys
import threading

import nets
import torch
from torch import nn

sys.setswitchinterval(1e-5)
# Whole numbers: sums of gradients are the same in any order.
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
with torch.no_grad():
    for n, p in enumerate(model.parameters()):
        p.copy_(torch.arange(p.numel()).reshape(p.shape) % (3 + n))
# One node for each parameter, whichever thread makes a graph: it locks what it adds to.
nodes = [p.view_as(p).grad_fn.next_functions[0][0] for p in model.parameters()]
start = threading.Barrier(5)


def work(number):
    start.wait()
    for _ in range(40):
        part = model if number % 2 else model[0]
        part(torch.full((2, 4), float(number))).sum().backward()


# Not what a backward keeps: a step in its middle would make it fail.
optimizer = torch.optim.SGD([*model[0].parameters(), model[1].bias], lr=0.0)
for _ in range(12):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
start.wait()
for _ in range(40):
    optimizer.step()
for thread in threads:
    thread.join()
print([p.grad.tolist() for p in model.parameters()])
other = nets.Net()
graph = other(torch.ones(2, 8)).sum()
threads = [threading.Thread(target=graph.backward, kwargs={"retain_graph": True}) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print([p.grad.isfinite().all().item() for p in other.parameters()])
