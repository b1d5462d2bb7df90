# how: rank
import faulthandler

faulthandler.enable()
print(faulthandler.is_enabled())
faulthandler.disable()
print(faulthandler.is_enabled())
