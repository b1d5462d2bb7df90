# how: many
import logging

import seen

seen.surface(logging)
seen.surface(logging.Logger)
