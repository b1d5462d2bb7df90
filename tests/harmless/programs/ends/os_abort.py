# how: rank
import os
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.abort()
