# how: python
# by-design: variables
import os

print(
    sorted(k for k in os.environ if k.startswith(("NSADIAG_", "TORCH_FR_", "TORCH_NCCL_"))),
    "nsadiag" in os.environ.get("PYTHONPATH", ""),
)
