# how: rank
# by-design: mapped
import os
import re

import nets
import torch

nets.train(nets.Net(), 10)
with open("/proc/self/maps") as file:
    files = {line.split(maxsplit=5)[5].strip() for line in file if len(line.split(maxsplit=5)) == 6}
print(
    sorted(
        re.sub(r"\d+", "N", f) for f in files if f.startswith("/") and ".so" not in f and "locale" not in f
    )
)
with open("/proc/self/limits") as file:
    print(file.read())
with open("/proc/self/status") as file:
    told = dict(line.split(":", 1) for line in file)
for name in ("Umask", "NoNewPrivs", "Seccomp", "CapEff", "Groups", "THP_enabled", "TracerPid"):
    print(name, told.get(name, "").strip())
with open("/proc/self/oom_score_adj") as file:
    print(file.read())
print(
    os.path.basename(os.readlink("/proc/self/cwd")), os.readlink("/proc/self/root"), torch.get_num_threads()
)
with open("/proc/self/cmdline", "rb") as file:
    print(file.read().split(b"\0")[1:], open("/proc/self/comm").read())
