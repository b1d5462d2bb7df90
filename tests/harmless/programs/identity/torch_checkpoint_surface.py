# how: many
import seen
import torch.distributed.checkpoint as checkpoint

seen.surface(checkpoint)
