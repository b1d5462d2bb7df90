# how: rank
# slow
import os
import signal

import nets
import torch


class Alarm(TimeoutError):
    pass


def handler(*_):
    raise Alarm


signal.signal(signal.SIGALRM, handler)
came = 0
model = nets.Net()
# What torch imports at the first call may not be interrupted: Python keeps half a module then, plain too.
torch.save({}, "x0.pt")
model(torch.ones(8))
for n in range(60):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0001 * (n % 9))
        for k in range(10000):
            torch.save({}, f"x{k % 5}.pt")
            model(torch.ones(8))
    except Alarm:
        came += 1
print(came)
for k in range(5):
    if os.path.exists(f"x{k}.pt"):  # how far the last save came is chance
        os.remove(f"x{k}.pt")
torch.save({}, "after.pt")
print(nets.train(nets.Net())[0])
