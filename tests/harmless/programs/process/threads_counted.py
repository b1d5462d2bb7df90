# how: rank
# alone
# by-design: threads
import os

import nets

nets.train(nets.Net())
print(len(os.listdir("/proc/self/task")) > 2)
