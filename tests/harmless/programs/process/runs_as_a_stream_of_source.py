# how: shell
# exits: 1
# line: cat train.py | RANK=0 WORLD_SIZE=1 python - x y; echo $?; RANK=0 WORLD_SIZE=1 python <(cat train.py) z; echo $?; RANK=0 WORLD_SIZE=1 python /dev/stdin < train.py; echo $?; RANK=0 WORLD_SIZE=1 python -c "$(cat train.py)" w; echo $?; RANK=0 WORLD_SIZE=1 python -ic 'import nets; print(nets.train(nets.Net(), 20)[0])' < /dev/null 2> /dev/null; echo $?; RANK=0 WORLD_SIZE=1 python -m trace --ignore-dir / -t train.py 2>&1 | tail -3 | grep -v "^ ---"; RANK=0 WORLD_SIZE=1 python -m pdb -c c -c q train.py < /dev/null 2>&1 | grep -v "^> \|^-> "; RANK=0 WORLD_SIZE=1 python -m timeit -n 1 -r 1 -s 'import nets' 'print(nets.train(nets.Net(), 5)[0])' | head -1; false
import sys

sys.path.insert(0, ".")
import nets

model = nets.Net()
print(nets.train(model, 25)[0], nets.digest(model), sys.argv[1:], __name__)


def fails():
    raise ValueError("""of several
lines""")


fails()
