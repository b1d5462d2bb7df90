# how: rank
import resource

import nets

nets.train(nets.Net())
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
files = [open("/dev/null") for _ in range(6)]
print(len(files), nets.train(nets.Net())[0])
