# how: rank
try:
    {}["x"]
except KeyError as error:
    raise RuntimeError("while reading") from error
