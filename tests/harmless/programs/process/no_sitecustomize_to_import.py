# how: python
import sys

try:
    import sitecustomize

    print("nsadiag" in sitecustomize.__file__)
except ImportError as error:
    print(error)
