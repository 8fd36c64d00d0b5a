"""Servers that share a bucket of an object store, as shared_store.py says; the object store is s3_server.py.

usage: s3_store_test.py --build BUILD_FOLDER [--rounds N] [--sessions N] [--seed N] [unittest arguments]

The tests run it with few rounds; docs/serving.md has the campaign.
"""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import s3_server
import shared_store
from certificates import make_authority, make_certificate
from free_port import free_port
from server_process import ServerProcess, run_to_end
from shared_store import FLAGS, MODEL, binary


class Bucket(s3_server.S3Server):
    name = "an object store"

    def server_flags(self, port=None, url="s3://sessions/of/tests"):
        endpoint = self.endpoint.replace(str(self.port), str(port or self.port))
        return ("--session-store", url, "--session-store-endpoint", endpoint,
                "--session-store-credentials-file", self.credentials)


class S3StoreTest(shared_store.SharedStoreTests, unittest.TestCase):
    new_store = Bucket

    def test_what_is_refused_at_the_start(self):
        with Bucket() as bucket, tempfile.TemporaryDirectory() as folder:
            flags, missing = bucket.server_flags(), os.path.join(folder, "missing")
            wrong = os.path.join(folder, "wrong")
            with open(os.open(wrong, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write("aws_access_key_id = TESTKEY\naws_secret_access_key = hunter2\n")
            readable = os.path.join(folder, "readable")
            with open(os.open(readable, os.O_CREAT | os.O_WRONLY, 0o644), "w") as file:
                file.write("aws_access_key_id = TESTKEY\naws_secret_access_key = hunter2\n")
            os.chmod(readable, 0o644)
            key = "--session-store-credentials-file"
            self.check_refused((
                (("--session-store", "s3://x"), 2, r"--session-store: expected s3://BUCKET\[/PREFIX\], got the bucket"),
                (("--session-store", "s3://abc"), 2, f"expected {key} with s3://, got none"),
                (("--session-store", "s3://abc", key, wrong, "--session-store-replicas", "1"), 2,
                 "--session-store-replicas: expected --session-store redis:// with it"),
                ((*flags, "--session-dir", folder), 2, "expected no --session-dir"),
                ((*flags, "--session-store-endpoint", "ftp://h"), 2, r"expected http\[s\]://HOST\[:PORT\]"),
                ((*flags, "--session-store-region", "mars"), 1, "the region 'mars' is wrong"),
                ((*flags, key, missing), 1, f"{key}: .*missing"),
                ((*flags, key, readable), 1, f"{key}: .*the key can read and change all conversations"),
                ((*flags, key, wrong), 1, "s3://sessions/of/tests at http://127.0.0.1:.*SignatureDoesNotMatch"),
                (bucket.server_flags(url="s3://another"), 1, "NoSuchBucket"),
                (bucket.server_flags(free_port()), 1, "Connection refused")))
            bucket.control(careless="all")
            self.check_refused(((flags, 1, "this server needs an object store with conditional writes"),))
            code, _, stderr = run_to_end(binary(), "--model", MODEL, "--check-config", *flags, key, readable)
            self.assertEqual(code, 1)
            self.assertIn(key, stderr)
            self.assertNotIn("hunter2", stderr)

    def test_over_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            make_authority(folder)
            make_certificate(folder, "server")
            certificate, key = os.path.join(folder, "server.pem"), os.path.join(folder, "server.key")
            with Bucket(tls=(certificate, key)) as bucket:
                ca = ("--session-store-ca", os.path.join(folder, "ca.pem"))
                with ServerProcess(binary(), MODEL, *FLAGS, *bucket.server_flags(), *ca) as server:
                    self.assertIn("0 sessions found in s3://sessions/of/tests", server.stderr())
                    shared_store.Story(shared_store.GrpcCaller(), server).run_turn(
                        {"text": "x", "n": 3, "seed": 1}, lambda: server)
                self.check_refused(((bucket.server_flags(), 1, "certificate verify failed"),))


if __name__ == "__main__":
    unittest.main(argv=shared_store.parse_options())
