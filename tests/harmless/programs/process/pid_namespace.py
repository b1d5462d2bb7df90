# how: shell
# needs: root
# line: unshare -pf --mount-proc bash -c 'RANK=0 WORLD_SIZE=1 python -c "import os; print(os.getpid(), os.getppid())"'
