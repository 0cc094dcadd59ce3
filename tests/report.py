"""How a file of tests is run and what it says at its end.

    python3 tests/test_cli.py [-v] [TestName.test_name ...]

The last line is 'N passed, N failed'; tests that could not run are counted behind it."""
import sys
import unittest


def main(module):
    """The exit status; nothing run is a failure."""
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(suite)
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print("%d passed, %d failed" % (result.testsRun - failed - skipped, failed) + (", %d skipped" % skipped if skipped else ""))
    return 1 if failed or result.testsRun == 0 else 0
