# how: rank
# slow
import os
import sys

import nets

if os.environ.get("AGAIN"):
    print("again", nets.train(nets.Net())[0])
else:
    nets.train(nets.Net())
    os.environ["AGAIN"] = "1"
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.argv])
