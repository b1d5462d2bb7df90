# how: rank
# exits: 1
try:
    {}["x"]
except KeyError as error:
    raise RuntimeError("while reading") from error
