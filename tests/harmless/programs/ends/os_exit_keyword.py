# how: rank
# exits: 3
import os

print("before", flush=True)
os._exit(status=3)
