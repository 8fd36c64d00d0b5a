"""Servers that share a Redis, as shared_store.py says.

usage: redis_store_test.py --build BUILD_FOLDER [--rounds N] [--sessions N] [--seed N] [unittest arguments]

The tests run it with few rounds; docs/serving.md has the campaign.
"""

import os
import shutil
import ssl
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import redis_process

if not redis_process.installed():
    print("SKIPPED: no redis-server; install redis-server")
    sys.exit(0)

import certificates
import shared_store
from free_port import free_port
from server_process import ServerProcess


class Redis(redis_process.RedisServer):
    name = "Redis"

    def server_flags(self, port=None):
        return "--session-store", f"redis://127.0.0.1:{port or self.port}/0"


class TlsRedis(Redis):
    """One that is reached over TLS alone, by clients with a certificate of its authority."""
    name = "Redis over TLS"

    def __init__(self):
        self.files = tempfile.mkdtemp()
        for authority in ("ca", "other"):
            certificates.make_authority(self.files, authority)
        for name in ("redis", "client"):
            certificates.make_certificate(self.files, name)
        super().__init__()

    def file(self, name):
        return os.path.join(self.files, name)

    def listening(self):
        return ("--port", "0", "--tls-port", str(self.port), "--tls-cert-file", self.file("redis.pem"),
                "--tls-key-file", self.file("redis.key"), "--tls-ca-cert-file", self.file("ca.pem"))

    def connect(self):
        context = ssl.create_default_context(cafile=self.file("ca.pem"))
        context.load_cert_chain(self.file("client.pem"), self.file("client.key"))
        return context.wrap_socket(super().connect(), server_hostname="127.0.0.1")

    def address_flags(self, port=None):
        return "--session-store", f"rediss://127.0.0.1:{port or self.port}/0"

    def server_flags(self, port=None, ca="ca.pem"):
        return (*self.address_flags(port), "--session-store-ca", self.file(ca),
                "--session-store-cert", self.file("client.pem"), "--session-store-key", self.file("client.key"))

    def __exit__(self, *_):
        super().__exit__()
        shutil.rmtree(self.files)


class RedisStoreTest(shared_store.SharedStoreTests, unittest.TestCase):
    new_store = Redis

    def test_servers_that_die_or_sleep(self):
        self.new_store = TlsRedis
        super().test_servers_that_die_or_sleep()

    @unittest.skipIf(shutil.which("haproxy") is None, "no haproxy; install haproxy")
    def test_servers_that_die_or_sleep_behind_haproxy(self):
        self.disturb_servers(behind_haproxy=True)

    def test_what_is_refused_at_the_start(self):
        self.check_refused((
            (("--session-store", "redis://cache", "--session-store-ca", "x"), 2, "expected --session-store rediss://"),
            (("--session-store", "cache:6379"), 2, r"--session-store: expected redis\[s\]://\[USER@\]HOST"),
            (("--session-store", "redis://cache", "--session-dir", "x"), 2, "expected no --session-dir"),
            (("--session-lease", "5s"), 2, "--session-lease: expected --session-store with it"),
            (("--session-store", "redis://cache", "--session-sync", "interval"), 2, "expected --session-dir"),
            (("--session-store", f"redis://127.0.0.1:{free_port()}"), 1,
             "--session-store: redis://127.0.0.1:.*: Connection refused"),
            (("--session-store", "redis://cache", "--session-store-password-file", "/no/such"), 1,
             "--session-store-password-file: /no/such")))

    def test_what_tls_refuses_at_the_start(self):
        with TlsRedis() as redis:
            self.check_refused((
                ((*redis.address_flags(), "--session-store-ca", redis.file("ca.pem")), 1, "certificate required"),
                (redis.server_flags(ca="other.pem"), 1, "certificate verify failed"),
                (redis.server_flags(ca="none.pem"), 1, "--session-store-ca: .*none.pem"),
                ((*redis.address_flags(), "--session-store-cert", redis.file("client.pem"), "--session-store-key",
                  redis.file("redis.key")), 1, "--session-store-key: .*is not the key of the certificate")))

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
