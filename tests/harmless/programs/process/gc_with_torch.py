# how: rank
import gc
import sys

import nets

nets.train(nets.Net())
print(
    gc.isenabled(),
    gc.get_threshold(),
    gc.callbacks,
    gc.get_freeze_count(),
    sys.getswitchinterval(),
    sys.getrecursionlimit(),
)
