# how: rank
class Bad:
    def __del__(self):
        raise ValueError("in del")


Bad()
print("on")
