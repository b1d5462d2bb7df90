# how: shell
# slow
# alone
# line: RANK=0 WORLD_SIZE=1 python -c 'import signal; print(signal.getsignal(signal.SIGINT))' & wait
