# how: many
import seen
import torch.distributed as dist

seen.surface(dist, [n for n in dir(dist) if not n.startswith("_")])
