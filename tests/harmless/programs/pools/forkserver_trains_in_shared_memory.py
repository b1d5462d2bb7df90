# how: rank
# unordered
import multiprocessing.resource_tracker as tracker
import os

import nets
import torch
import torch.multiprocessing as mp


def work(number, model, counts, done):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0625)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 8), float(number))).sum().backward()
        optimizer.step()
        counts[number] += 1
    print(
        "in child", number, all(p.is_shared() for p in model.parameters()), counts[number].item(), flush=True
    )
    done.put((number, nets.digest(model)))


def main():
    for method in ("forkserver", "spawn"):
        context = mp.get_context(method)
        counts, done = torch.zeros(3, dtype=torch.long).share_memory_(), context.SimpleQueue()
        for strategy in ("file_system", "file_descriptor"):
            mp.set_sharing_strategy(strategy)
            model = nets.Net().share_memory()
            nets.train(model, 8)
            for number in range(2):
                child = context.Process(target=work, args=(number, model, counts, done))
                child.start()
                print(method, strategy, number, done.get())
                child.join()
                print("ended", child.exitcode)
            print(counts.tolist(), nets.digest(model))
    print(tracker._resource_tracker._fd is not None, sorted(os.listdir()))


if __name__ == "__main__":
    main()
