# how: rank
# slow
# alone
import os

kept = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
print("gone", flush=True)
os.dup2(kept, 1)
print("back", flush=True)
