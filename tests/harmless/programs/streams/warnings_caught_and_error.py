# how: rank
# exits: 1
import warnings

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    warnings.warn("x", DeprecationWarning)
print([(w.category.__name__, w.lineno) for w in seen], len(warnings.filters))
warnings.simplefilter("error")
warnings.warn("fatal")
