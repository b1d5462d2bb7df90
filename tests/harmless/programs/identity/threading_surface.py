# how: many
# by-design: wrappers
import threading

import seen

seen.surface(threading)
seen.surface(threading.Thread)
