# how: rank
# exits: 6
import resource

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    bytearray(8 << 30)
except MemoryError:
    print("no memory")
raise SystemExit(6)
