# how: rank
# slow
# alone
import sys

sys.stdout.buffer.write(bytes(range(256)) * 40 + b"\n")
