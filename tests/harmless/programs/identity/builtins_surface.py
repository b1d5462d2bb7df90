# how: many
# by-design: wrappers
import builtins

import seen

seen.surface(builtins)
