# how: many
# by-design: wrappers
import faulthandler

import seen

seen.surface(faulthandler)
