# how: rank
import multiprocessing as mp


def work(connection, barrier, value):
    barrier.wait()
    with value.get_lock():
        value.value += 1
    connection.send(connection.recv() * 2)


if __name__ == "__main__":
    here, there = mp.Pipe()
    barrier, value = mp.Barrier(2), mp.Value("i", 0)
    process = mp.Process(target=work, args=(there, barrier, value))
    process.start()
    here.send(21)
    barrier.wait()
    print(here.recv(), process.join(), value.value)
