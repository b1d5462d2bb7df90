# how: rank
# env: PYTHONHASHSEED=7
import sys

print(hash("x"), sys.flags.hash_randomization, {"b", "a", "c"})
