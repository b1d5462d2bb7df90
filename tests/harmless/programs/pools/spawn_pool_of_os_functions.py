# how: rank
import multiprocessing as mp
import os

if __name__ == "__main__":
    with mp.get_context("spawn").Pool(1) as pool:
        print(pool.apply(os.kill, (os.getpid(), 0)), pool.apply(len, ("abc",)))
        try:
            pool.apply(os._exit, (3, 4))
        except Exception as error:
            print(type(error).__name__, error)
