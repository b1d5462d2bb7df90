# how: python
# slow
# alone
import ctypes

number = ctypes.c_int()
libc = ctypes.CDLL(None)
print(
    libc.prctl(3, 0, 0, 0, 0),
    libc.prctl(2, ctypes.byref(number)),
    number.value,
    libc.prctl(37, ctypes.byref(number)),
    number.value,
)
