# how: rank
import os

import nets
import torch
import torch.multiprocessing as mp
from torch import nn


def adds(model, tensor, queue, strategy, done):
    mp.set_sharing_strategy(strategy)
    with torch.no_grad():
        tensor.add_(1)
        model.a.bias.add_(1)
    loss, _ = nets.train(model, 3, x=torch.ones(2, 8))
    queue.put((loss, [torch.full((3,), float(n)) for n in range(4)]))
    done.wait()  # a descriptor is fetched from its sender


if __name__ == "__main__":
    own = nets.Net()
    nets.train(own, 20)
    for strategy in ("file_system", "file_descriptor"):
        mp.set_sharing_strategy(strategy)
        for method in ("fork", "spawn"):
            context = mp.get_context(method)
            torch.manual_seed(0)
            model, tensor, queue = nets.Net().share_memory(), torch.zeros(4).share_memory_(), context.Queue()
            done = context.Event()
            worker = context.Process(target=adds, args=(model, tensor, queue, strategy, done))
            worker.start()
            loss, made = queue.get()
            print(strategy, method, loss, [t.tolist() for t in made], [t.is_shared() for t in made])
            del made
            done.set()
            worker.join()
            print(
                worker.exitcode,
                tensor.tolist(),
                nets.digest(model),
                nets.train(model, 3, x=torch.ones(2, 8))[0],
            )
            left = [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{worker.pid}_")]
            print(left)
    print(nets.train(nn.DataParallel(own), 3)[0], nets.digest(own))
