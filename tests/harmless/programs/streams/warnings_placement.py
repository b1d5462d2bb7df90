# how: rank
import warnings

warnings.simplefilter("always")


def careful():
    warnings.warn("careful", stacklevel=2)


careful()
