# how: many
import seen
import torch.distributed._functional_collectives as functional

seen.surface(functional)
