# how: rank
import multiprocessing as mp
from multiprocessing import shared_memory


def fill(name, shared):
    memory = shared_memory.SharedMemory(name)
    memory.buf[0] = 7
    memory.close()
    shared["done"] = True


if __name__ == "__main__":
    with mp.Manager() as manager:
        shared = manager.dict()
        memory = shared_memory.SharedMemory(create=True, size=16)
        process = mp.Process(target=fill, args=(memory.name, shared))
        process.start()
        process.join()
        print(memory.buf[0], dict(shared), process.exitcode)
        memory.close()
        memory.unlink()
