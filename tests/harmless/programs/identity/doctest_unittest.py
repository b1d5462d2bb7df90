# how: many
import doctest
import io
import types
import unittest

import seen

module = types.ModuleType(
    "documented",
    ">>> print('x')\nx\n>>> 1 / 0\nTraceback (most recent call last):\nZeroDivisionError: division by zero\n",
)
seen.say(doctest.testmod(module))


class Case(unittest.TestCase):
    def test_good(self):
        with self.assertLogs("a") as logs:
            import logging

            logging.getLogger("a").error("x")
        self.assertEqual(len(logs.output), 1)

    def test_bad(self):
        self.fail("as meant")


text = io.StringIO()
result = unittest.TextTestRunner(text).run(unittest.defaultTestLoader.loadTestsFromTestCase(Case))
seen.say(result.testsRun, len(result.failures), seen.digest(result.failures[0][1]))
seen.say(result.failures[0][1])
