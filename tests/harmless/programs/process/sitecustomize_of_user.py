# how: shell
# line: mkdir mine; echo 'import sys; sys.of_user = __name__, __file__; print("customized")' > mine/sitecustomize.py; PYTHONPATH=$PYTHONPATH:mine RANK=0 WORLD_SIZE=1 python train.py
import sys

print(
    sys.of_user[0],
    "sitecustomize" in sys.modules,
    sys.modules["sitecustomize"].__file__.endswith("mine/sitecustomize.py"),
)
