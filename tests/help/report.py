"""Runs a file of tests and prints its result.

    python3 tests/cli/test_cli.py [-v] [TestName.test_name ...]

The last line is 'N passed, N failed'; tests that could not run are counted behind it."""
import sys
import unittest


def main(module):
    """Returns the exit status; running nothing counts as a failure."""
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(suite)
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print("%d passed, %d failed" % (result.testsRun - failed - skipped, failed)
          + (", %d skipped" % skipped if skipped else ""))
    return 1 if failed or result.testsRun == 0 else 0
