# how: rank
import logging
import signal

import torch

logging.basicConfig(filename="x.log", format="%(message)s")
count = []


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
    count.append(1)
    try:
        raise ValueError(len(count))
    except ValueError:
        logging.exception("at a signal")
        print("", end="", flush=True)


handler()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for n in range(400):
    try:
        torch.load(f"nowhere{n}")
    except FileNotFoundError:
        print("", end="")
        logging.debug("unseen")
signal.setitimer(signal.ITIMER_REAL, 0)
open("x.log", "w").close()
print("done", len(count) > 3)
