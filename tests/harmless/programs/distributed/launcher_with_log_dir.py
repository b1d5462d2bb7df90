# how: shell
# slow
# line: torchrun --standalone --nproc-per-node=2 --log-dir logs --redirects 3 --tee 1 train.py > out; sort out; cat logs/*/attempt_0/1/stdout.log; rm -rf logs out
import nets
from seen import say

nets.init()
say("hello")
__import__("torch").distributed.barrier()  # who leaves while another connects is missed by it
__import__("torch").distributed.destroy_process_group()
