# how: many
import seen
import torch

seen.surface(torch, [n for n in dir(torch) if not n.startswith("_") and n[:1].islower()])
