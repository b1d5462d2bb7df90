# how: many
import traceback
import warnings

import seen

seen.surface(traceback)
seen.surface(traceback.TracebackException)
seen.surface(warnings)
