# how: shell
# line: RANK=0 WORLD_SIZE=1 python -c 'print("a\nb\nc")' | cat; echo ${PIPESTATUS[@]}
