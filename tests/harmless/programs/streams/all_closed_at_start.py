# how: shell
# alone
# line: RANK=0 WORLD_SIZE=1 python train.py <&- >&- 2>&-; echo $?; cat out.txt; RANK=0 WORLD_SIZE=1 python train.py > /dev/full; echo $?; RANK=0 WORLD_SIZE=1 python -c 'print("x")' 2> /dev/full > /dev/full; echo $?; RANK=0 WORLD_SIZE=1 python -c 'print("x")' >&-; echo $?
import os
import sys

with open("out.txt", "w") as file:
    print(sys.stdin is None, sys.stdout is None, sys.stderr is None, file=file)
    first = os.open("/dev/null", os.O_RDONLY)
    print(first if first < 3 else "later", file=file)
    import nets

    print(nets.train(nets.Net())[0], file=file)
print("to stdout")
