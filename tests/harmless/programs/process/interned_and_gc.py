# how: rank
import gc
import sys

print(
    gc.isenabled(),
    gc.get_threshold(),
    gc.get_debug(),
    gc.callbacks,
    gc.get_freeze_count(),
    sys.getswitchinterval(),
    sys.getrecursionlimit(),
)
