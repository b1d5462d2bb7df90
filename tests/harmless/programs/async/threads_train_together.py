# how: rank
import threading

import nets
import torch

models = [nets.Net() for _ in range(4)]
x = torch.ones(4, 8)


def work(model):
    nets.train(model, 30, x=x)
    for n in range(20):
        torch.save(model.state_dict(), f"{threading.current_thread().name}.pt")


threads = [threading.Thread(target=work, args=(m,), name=f"w{n}") for n, m in enumerate(models)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(nets.digest(*models))
