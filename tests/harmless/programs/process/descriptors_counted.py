# how: rank
# by-design: descriptors
import os

print(len(os.listdir("/proc/self/fd")) - 1)
