# how: rank
import os

print("before", flush=True)
os._exit(status=3)
