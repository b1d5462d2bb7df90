# how: rank
# exits: 3
# alone
import os

print("before", flush=True)
os._exit(3)
