# how: shell
# line: env -i PATH="$PATH" RANK=0 WORLD_SIZE=1 python -c 'import os; print(sorted(os.environ))'
