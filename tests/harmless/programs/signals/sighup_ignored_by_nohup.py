# how: shell
# exits: 1
# line: RANK=0 WORLD_SIZE=1 nohup python -c 'import signal; print(signal.getsignal(signal.SIGHUP))' 2>/dev/null; cat nohup.out 2>/dev/null
