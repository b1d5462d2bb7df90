# how: rank
import faulthandler

print(faulthandler.is_enabled())
