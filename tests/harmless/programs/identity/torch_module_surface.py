# how: many
import seen
from torch import nn

seen.surface(nn.Module)
