# how: rank
import os

import nets

nets.train(nets.Net())
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child of anybody's")
