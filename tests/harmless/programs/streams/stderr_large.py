# how: rank
import sys

for n in range(5000):
    print("e" * 100, n, file=sys.stderr)
