# how: shell
# alone
# line: RANK=0 WORLD_SIZE=1 python train.py | head -n 2; echo ${PIPESTATUS[0]}; RANK=0 WORLD_SIZE=1 python train.py default | head -n 2; echo ${PIPESTATUS[0]}
import signal
import sys

import nets

if sys.argv[1:]:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
print(nets.train(nets.Net())[0])
for n in range(100000):
    print(n)
