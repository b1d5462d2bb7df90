# how: rank
# slow
# alone
# differs-today: output beyond RLIMIT_FSIZE finds no room in a log of ours
import resource
import sys

resource.setrlimit(resource.RLIMIT_FSIZE, (32768, 32768))
for _ in range(1000):
    print("x" * 60, file=sys.stderr)
print("end")
