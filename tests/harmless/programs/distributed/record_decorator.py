# how: torchrun
# exits: 1
# slow
import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "0":
        time.sleep(60)
    raise RuntimeError("recorded")


main()
