"""Runs a real server with an HTTP front, for http_test.py and http_wire_test.py."""

import argparse
import os
import shutil
import sys
import tempfile
import unittest

from http_client import HttpClient, http_port, write_chat_model
from server_process import ServerProcess

# path of ovq-server, and the folder of the model and the tests' files; set by main
binary = folder = None


def serve(*flags):
    return ServerProcess(binary, os.path.join(folder, "tiny"), "--state-memory", "64M", "--threads",
                         "1", "--http-listen", "127.0.0.1:0", *flags)


def path_of(name):
    return os.path.join(folder, name)


class HttpCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve()
        cls.addClassCleanup(cls.server.kill)
        cls.port = http_port(cls.server)

    def setUp(self):
        self.http = HttpClient(self.port)
        self.addCleanup(self.http.close)

    def error(self, answer, status, text="", param=None):
        self.assertEqual(answer[0], status, answer)
        error = answer[1]["error"]
        self.assertLessEqual({"message", "type", "param", "code"}, error.keys())
        self.assertIn(text, error["message"])
        if param is not None:
            self.assertEqual(error["param"], param)
        return error


def main():
    """Runs the program's tests: --build BUILD_FOLDER [unittest arguments]."""
    global binary, folder
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    binary = os.path.join(options.build, "bin", "ovq-server")
    folder = tempfile.mkdtemp(prefix="ovq_http_test_")
    write_chat_model(path_of("tiny"))
    try:
        unittest.main("__main__", argv=[sys.argv[0], *rest], exit=False).result.wasSuccessful() or sys.exit(1)
    finally:
        shutil.rmtree(folder)
