"""Ports that tests are given: two callers never get one port."""

import os
import subprocess
import sys
import unittest
import unittest.mock

import free_port


def draws(*ports):
    """Lets free_port draw these ports, one after another."""
    return unittest.mock.patch.object(free_port.random, "SystemRandom",
                                      return_value=unittest.mock.Mock(randrange=unittest.mock.Mock(side_effect=ports)))


class FreePortTest(unittest.TestCase):
    def test_none_is_given_twice_by_one_process(self):
        first, second = free_port.free_port(), free_port.free_port()
        with draws(first, second, first, second, unclaimed := self.some_port()):
            self.assertEqual(free_port.free_port(), unclaimed)

    def test_none_is_given_that_another_process_was_given_until_that_ends(self):
        program = "import sys, free_port; print(free_port.free_port(), flush=True); sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", program], cwd=os.path.dirname(os.path.abspath(__file__)), text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            port = int(other.stdout.readline())
            self.assertFalse(free_port.claim(port))
            other.stdin.close()
        self.assertTrue(free_port.claim(port))

    def some_port(self):
        """Returns one that was free a moment ago, and that nobody has claimed."""
        port = free_port.free_port()
        free_port._claims.pop().close()
        return port


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
