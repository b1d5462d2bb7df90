# how: rank
# slow
import os
import signal

import torch

ends = []


def handler(*_):
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    if (
        len(ends) < 40
    ):  # armed anew when it is done: on a busy machine a steady timer would nest handlers without end
        signal.setitimer(signal.ITIMER_REAL, 0.02)


signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.02)
for n in range(200):
    torch.save({}, f"x{n % 3}.pt")
    torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
while not ends:
    pass
signal.setitimer(signal.ITIMER_REAL, 0)
print(set(ends))
