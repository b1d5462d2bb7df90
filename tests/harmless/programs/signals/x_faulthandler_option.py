# how: rank -X faulthandler
# exits: 139
import ctypes
import faulthandler
import resource
import sys

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(faulthandler.is_enabled(), flush=True)
sys.stderr.close()
ctypes.string_at(0)
