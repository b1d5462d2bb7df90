# how: rank
# slow
import nets
import torch
import torch.multiprocessing as mp


def work(model, n):
    torch.manual_seed(n)
    nets.train(model, 3)


if __name__ == "__main__":
    model = nets.Net().share_memory()
    for n in range(2):
        process = mp.get_context("spawn" if n else "fork").Process(target=work, args=(model, n))
        process.start()
        process.join()
        print(process.exitcode, nets.digest(model))
