# how: rank
# slow
# alone
import os
import sys

print("one", flush=True)
os.write(1, b"two\n")
print("three", flush=True)
sys.stdout.buffer.write(b"four\n")
sys.stdout.flush()
