# how: rank
import ctypes

print(ctypes.CDLL(None).prctl(4, 0, 0, 0, 0), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
