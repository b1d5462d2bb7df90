# how: rank
import ctypes
import pathlib

ctypes.CDLL(None).prctl(15, b"renamed", 0, 0, 0)
print(pathlib.Path("/proc/self/comm").read_text())
