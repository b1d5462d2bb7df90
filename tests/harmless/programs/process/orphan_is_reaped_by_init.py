# how: rank
import os
import time

reading, writing = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        parent = os.getppid()
        os.write(writing, b"r")
        while os.getppid() == parent:
            time.sleep(0.01)
        os.write(writing, b"o")
        os._exit(0)
    os.read(reading, 1)
    os._exit(0)
os.wait()
print(os.read(reading, 1))
