# how: rank
import signal

import nets
import torch

model, other, calls = nets.Net(), nets.Net(), []
weights = {name: value.clone() for name, value in other.state_dict().items()}


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
    calls.append(1)
    with torch.no_grad():
        other(torch.ones(1, 8))
    print("", end="")


handler()
signal.signal(signal.SIGPROF, handler)
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
x = torch.ones(8, 8)
loss = nets.train(model, 300, x=x)[0]
signal.setitimer(signal.ITIMER_PROF, 0)
print(loss, nets.digest(model), len(calls) > 3, weights.keys() == other.state_dict().keys())
