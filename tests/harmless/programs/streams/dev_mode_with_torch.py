# how: rank -X dev
import seen
import torch

torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
seen.say("ran")
