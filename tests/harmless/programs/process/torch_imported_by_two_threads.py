# how: rank
import threading

found = []


def load():
    import torch

    found.append(torch.nn.Linear(2, 2)(torch.ones(2)).shape)


threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found)
import nets

print(nets.train(nets.Net())[0])
