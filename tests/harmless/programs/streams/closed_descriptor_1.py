# how: rank
# alone
import os
import sys

os.close(1)
try:
    print("lost", flush=True)
except OSError as error:
    print(error.errno, file=sys.stderr)
sys.stdout = None
