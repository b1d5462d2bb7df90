# how: rank
# slow
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
for n in range(60):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0001 * (n % 9))
        for k in range(10000):
            torch.save({}, f"x{k % 5}.pt")
            model(torch.ones(8))
    except Alarm:
        came += 1
print(came)
torch.save({}, "after.pt")
print(nets.train(nets.Net())[0])
