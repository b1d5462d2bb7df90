# how: rank
# exits: 139
import ctypes
import os
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.closerange(3, 4096)
files = [open(f"mine{n}.txt", "w") for n in range(16)]
ctypes.string_at(0)
