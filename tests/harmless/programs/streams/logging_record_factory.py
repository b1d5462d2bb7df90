# how: rank
import logging

before = logging.getLogRecordFactory()
print(before is logging.LogRecord, before.__name__)


def factory(*args, **kwargs):
    record = before(*args, **kwargs)
    record.extra = "more"
    return record


logging.setLogRecordFactory(factory)
logging.basicConfig(format="%(extra)s %(message)s")
logging.warning("x")
print(logging.getLogRecordFactory() is factory)
