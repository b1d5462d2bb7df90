# how: rank
import sys
import threading

import nets
import torch

sys.setswitchinterval(1e-6)
models, losses = [nets.Net() for _ in range(4)], {}
x, gate = torch.ones(4, 8), threading.Barrier(4)


def work(number):
    gate.wait()
    for part in range(10):
        losses[number, part] = nets.train(models[number], 8, x=x)[0]
        torch.save(models[number].state_dict(), f"{number}.pt")


threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sys.getswitchinterval() < 1e-5, len(losses), losses[0, 9], nets.digest(*models))
