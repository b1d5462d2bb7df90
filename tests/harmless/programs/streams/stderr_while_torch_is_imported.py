# how: rank
import os
import threading

go, done = threading.Event(), threading.Event()


def write():
    n = 0
    while not done.is_set():
        os.write(2, b"")
        n += 1
        if n % 50 == 0:
            os.write(2, b"still here\n")
            lines.append(1)


lines = []
kept = os.dup(2)
reader, writer = os.pipe()
os.dup2(writer, 2)
found = []


def read():
    while data := os.read(reader, 65536):
        found.append(data)


collecting, writing = threading.Thread(target=read), threading.Thread(target=write)
collecting.start()
writing.start()
import torch

done.set()
writing.join()
os.dup2(kept, 2)
os.close(writer)
collecting.join()
print(b"".join(found).count(b"still here") == len(lines), torch.ones(1))
