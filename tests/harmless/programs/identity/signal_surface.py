# how: many
# by-design: wrappers
import signal

import seen

seen.surface(signal)
