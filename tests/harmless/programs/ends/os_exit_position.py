# how: rank
# alone
import os

print("before", flush=True)
os._exit(3)
