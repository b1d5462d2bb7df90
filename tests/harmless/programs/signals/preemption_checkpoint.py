# how: rank
import os
import signal

import nets
import torch

model = nets.Net()
requested = []


def on_preempt(*_):
    torch.save({"model": model.state_dict(), "step": len(requested)}, "preempt.pt")
    requested.append(1)


signal.signal(signal.SIGUSR1, on_preempt)
for step in range(100):
    nets.train(model, 1)
    torch.save(model.state_dict(), f"step{step}.pt")
    os.kill(os.getpid(), signal.SIGUSR1)
print(len(requested), nets.digest(model))
for file in os.listdir():
    if file.endswith(".pt"):
        os.unlink(file)
