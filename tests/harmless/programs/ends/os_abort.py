# how: rank
# exits: 134
import os
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.abort()
