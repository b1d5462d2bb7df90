# how: rank
import concurrent.futures as futures
import os

if __name__ == "__main__":
    with futures.ProcessPoolExecutor(2) as pool:
        print(list(pool.map(abs, range(-3, 0))))
        try:
            pool.submit(os._exit, 5).result()
        except futures.process.BrokenProcessPool as error:
            print(type(error).__name__)
