# how: rank
# slow
# alone
import resource
import sys

resource.setrlimit(resource.RLIMIT_FSIZE, (32768, 32768))
for _ in range(1000):
    print("x" * 60, file=sys.stderr)
print("end")
