# how: shell
# line: mkdir d; cd d; rmdir ../d; RANK=0 WORLD_SIZE=1 python -c 'print("ran")'
