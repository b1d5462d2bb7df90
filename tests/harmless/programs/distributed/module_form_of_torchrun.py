# how: shell
# slow
# line: python -m torch.distributed.run --standalone --nproc-per-node=2 -m train a b | sort
import sys

import nets
from seen import say

nets.init()
say(sys.argv[1:], __name__, __spec__.name)
__import__("torch").distributed.destroy_process_group()
