# how: rank
# exits: 139
# alone
import ctypes
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("now", flush=True)
ctypes.string_at(0)
