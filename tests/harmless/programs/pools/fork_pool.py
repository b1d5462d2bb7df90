# how: rank
import multiprocessing as mp

import nets


def work(n):
    return nets.train(nets.Net())[0], n


if __name__ == "__main__":
    with mp.get_context("fork").Pool(2) as pool:
        print(pool.map(work, range(4)))
