# how: ranks
import datetime
import os

import nets
import torch.distributed as dist
from seen import say

R = nets.init()
store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
store.set(f"k{R}", f"v{R}")
store.wait([f"k{1 - R}"], datetime.timedelta(seconds=60))
say(store.get(f"k{1 - R}"), store.add("n", 1) > 0, store.check(["nothing"]), type(store).__name__)
dist.barrier()
say(store.compare_set("c", "", "x") is not None, store.num_keys() > 0)
try:
    store.wait(["nothing"], datetime.timedelta(milliseconds=50))
except Exception as error:
    say(type(error).__name__)
own = dist.FileStore(os.path.abspath("file"), 2)
own.add("n", 1)
while own.add("n", 0) < 2:
    pass
dist.barrier()
del own
__import__("pathlib").Path("file").unlink(missing_ok=True)
