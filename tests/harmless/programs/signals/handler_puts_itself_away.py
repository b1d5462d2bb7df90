# how: rank
# slow
import os
import signal

import nets
import torch


class Alarm(Exception):
    pass


def handler(*_):
    # A time limit that holds once: whoever is interrupted finds another handler, or none.
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    raise Alarm


came = 0
model = nets.Net()
torch.save({}, "x0.pt")
model(torch.ones(8))
optimizer = torch.optim.SGD(model.parameters(), 0.0)
# Once without an alarm: the first of each imports a part of torch, which swallows what is raised in there.
model(torch.ones(8)).sum().backward()
optimizer.step()
for n in range(80):
    signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0001 * (n % 9))
        for k in range(10000):
            torch.save({}, f"x{k % 5}.pt")
            model(torch.ones(8)).sum().backward()
            optimizer.step()
            type(f"Kind{n}x{k}", (torch.nn.Identity,), {})()(torch.ones(1))
    except Alarm:
        came += 1
print(came)
for k in range(5):
    if os.path.exists(f"x{k}.pt"):  # how far the last save came is chance
        os.remove(f"x{k}.pt")
print(nets.train(nets.Net())[0])
