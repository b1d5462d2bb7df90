# how: rank
import itertools
import signal

import torch
from torch import nn

count = itertools.count()


def one_at_a_time(handle):
    """On a busy machine a handler takes longer than a tick."""

    def handler(*_):
        if not busy:
            busy.append(1)
            handle()
            busy.clear()

    return handler


busy = []


@one_at_a_time
def handler():
    n = next(count)
    torch.save({}, f"s{n % 7}.pt")
    type(f"K{n}", (nn.Module,), {"forward": lambda self, x: x})()(torch.zeros(1))


handler()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for n in range(1500):
    type(f"M{n}", (nn.Module,), {"forward": lambda self, x: x})()(torch.zeros(1))
signal.setitimer(signal.ITIMER_REAL, 0)
open("s0.pt", "w").close()
for n in range(7):
    __import__("os").path.exists(f"s{n}.pt") and __import__("os").unlink(f"s{n}.pt")
print("done", next(count) > 3)
