# how: rank
# alone
import os
import sys

print(sys.stdin.isatty(), sys.stdout.isatty(), [os.isatty(n) for n in range(3)])
