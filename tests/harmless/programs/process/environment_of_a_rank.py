# how: torchrun
# slow
import os

import seen

left_out = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "_", "NCCL_ASYNC_ERROR_HANDLING"}
for name, value in sorted(seen.environment().items()):
    if name not in left_out:
        seen.say(name, value)
