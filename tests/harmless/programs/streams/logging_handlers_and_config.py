# how: rank
import logging
import logging.config

logging.config.dictConfig(
    {
        "version": 1,
        "handlers": {"f": {"class": "logging.FileHandler", "filename": "x.log"}},
        "root": {"handlers": ["f"], "level": "DEBUG"},
    }
)
logging.getLogger("q").debug("to the file")
print(len(logging.getLogger().handlers), logging.root.handlers[0].stream.fileno())
