# how: shell
# line: (RANK=0 WORLD_SIZE=1 python train.py) 2> /dev/null; grep -c 'Fatal Python error' crash.log; rm crash.log
import ctypes
import faulthandler
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
log = open("crash.log", "w")
faulthandler.enable(log)
ctypes.string_at(0)
