# how: rank
# alone
import os
import sys

print("before", flush=True)
memory = os.memfd_create("mine")
os.write(memory, b"from a memfd\n")
os.lseek(memory, 0, os.SEEK_SET)
sys.stdout.flush()
reader, writer = os.pipe()
os.write(writer, b"from a pipe\n")
os.close(writer)
import torch

while data := os.read(memory, 100):
    os.write(1, data)
while data := os.read(reader, 100):
    os.write(1, data)
os.writev(1, [b"in ", b"parts\n"])
print("after", os.fstat(memory).st_size, torch.ones(1).item(), flush=True)
