# how: shell
# line: RANK= WORLD_SIZE= LOCAL_RANK= python -c 'print("ran")'
