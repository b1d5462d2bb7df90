# how: rank
import signal

import nets
import torch

model, calls = nets.Net(), []


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
    torch.save(model.state_dict(), "at_signal.pt")


handler()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
for n in range(300):
    torch.save(model.state_dict(), f"c{n % 50}.pt")
signal.setitimer(signal.ITIMER_REAL, 0)
print("done", len(calls) > 1)
