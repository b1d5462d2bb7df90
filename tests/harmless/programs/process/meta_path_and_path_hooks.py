# how: python
# by-design: finders
import sys

print(
    len(sys.meta_path), [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path], len(sys.path_hooks)
)
