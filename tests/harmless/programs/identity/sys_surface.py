# how: many
# by-design: wrappers
import sys

import seen

seen.surface(sys)
