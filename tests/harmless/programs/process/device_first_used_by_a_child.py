# how: rank
import os

import nets

# A driver that was started in the parent is of no use to what it forks: until the job does, nobody may start it.
nets.train(nets.Net(), 3)
child = os.fork()
if not child:
    import torch

    print(torch.ones(2).to("cuda" if torch.cuda.is_available() else "cpu").sum().item(), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
