# how: rank
import resource

import nets

nets.train(nets.Net())
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError as error:
    print(error.errno)
try:
    nets.torch.save({}, "x.pt")
except (OSError, RuntimeError) as error:
    print(type(error).__name__)
print(nets.train(nets.Net())[0])
del files
