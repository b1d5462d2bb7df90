# how: rank
import weakref


class Kept:
    pass


kept = Kept()
weakref.finalize(kept, print, "finalized")
print("end")
