# how: python
# exits: 9
# slow
# unordered
import multiprocessing as mp
import os
import signal
import sys


def leaves(n):
    sys.exit(n + 3)


def raises(n):
    raise ValueError(n)


def killed(n):
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    for method in ("fork", "spawn"):
        processes = [mp.get_context(method).Process(target=t, args=(0,)) for t in (leaves, raises, killed)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print([p.exitcode for p in processes])
    sys.exit(9)
