# how: rank
import os

for bad in ((), (1, 2), ("x",)):
    try:
        os._exit(*bad)
    except TypeError as error:
        print(error)
