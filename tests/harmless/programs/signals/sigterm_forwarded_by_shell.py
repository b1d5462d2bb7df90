# how: shell
# alone
# line: trap 'echo trapped' TERM; RANK=0 WORLD_SIZE=1 python -c 'import os, signal; parent = os.getppid(); parent > 1 and os.kill(parent, signal.SIGTERM)'; echo after
