# how: rank
import os

import nets

model = nets.Net()
nets.train(model)
pid = os.fork()
if pid == 0:
    print("child", nets.train(model)[0], flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print("parent", nets.train(model)[0], nets.digest(model))
