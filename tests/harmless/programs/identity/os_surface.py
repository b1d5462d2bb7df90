# how: many
# by-design: wrappers
import os

import seen

seen.surface(os)
