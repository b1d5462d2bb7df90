# how: python
import multiprocessing as mp

import nets


def work(queue):
    queue.put(nets.train(nets.Net())[0])


if __name__ == "__main__":
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get(timeout=100))
    process.join()
    print(process.exitcode)
