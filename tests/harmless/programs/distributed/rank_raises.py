# how: torchrun
# exits: 1
# slow
import os
import time

import nets

if nets.init() == 0:
    while not os.path.exists("raised"):
        time.sleep(0.05)
    time.sleep(60)
open("raised", "w").close()
raise ValueError("on rank one")
