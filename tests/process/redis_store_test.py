"""Servers that share a Redis, as shared_store.py says.

usage: redis_store_test.py --build BUILD_FOLDER [--rounds N] [--sessions N] [--seed N] [unittest arguments]

The tests run it with few rounds; docs/serving.md has the campaign.
"""

import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import redis_process

if not redis_process.installed():
    print("SKIPPED: no redis-server; install redis-server")
    sys.exit(0)

import shared_store
from server_process import ServerProcess


class Redis(redis_process.RedisServer):
    name = "Redis"

    def server_flags(self, port=None):
        return "--session-store", f"redis://127.0.0.1:{port or self.port}/0"


class RedisStoreTest(shared_store.SharedStoreTests, unittest.TestCase):
    new_store = Redis

    @unittest.skipIf(shutil.which("haproxy") is None, "no haproxy; install haproxy")
    def test_servers_that_die_or_sleep_behind_haproxy(self):
        self.disturb_servers(behind_haproxy=True)

    def test_what_is_refused_at_the_start(self):
        self.check_refused((
            (("--session-store", "rediss://cache"), 2, "no TLS to Redis"),
            (("--session-store", "cache:6379"), 2, r"--session-store: expected redis://\[USER@\]HOST"),
            (("--session-store", "redis://cache", "--session-dir", "x"), 2, "expected no --session-dir"),
            (("--session-lease", "5s"), 2, "--session-lease: expected --session-store with it"),
            (("--session-store", "redis://cache", "--session-sync", "interval"), 2, "expected --session-dir"),
            (("--session-store", f"redis://127.0.0.1:{redis_process.free_port()}"), 1,
             "--session-store: redis://127.0.0.1:.*: Connection refused"),
            (("--session-store", "redis://cache", "--session-store-password-file", "/no/such"), 1,
             "--session-store-password-file: /no/such")))

    def test_a_password_from_a_file(self):
        with Redis("--requirepass", "sesame") as redis, tempfile.NamedTemporaryFile("w") as file:
            file.write("sesame\n")
            file.flush()
            with ServerProcess(shared_store.binary(), shared_store.MODEL, *shared_store.FLAGS, *redis.server_flags(),
                               "--session-store-password-file", file.name) as server:
                self.assertIn("0 sessions found in redis://127.0.0.1", server.stderr())
                self.assertNotIn("sesame", server.stderr())


if __name__ == "__main__":
    unittest.main(argv=shared_store.parse_options())
