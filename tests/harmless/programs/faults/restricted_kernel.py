# how: rank
import ctypes

import nets

# No new privileges, and not dumpable: nothing may be read of this process from outside.
libc = ctypes.CDLL(None)
print(libc.prctl(38, 1, 0, 0, 0), libc.prctl(4, 0, 0, 0, 0), nets.train(nets.Net(), 5)[0])
