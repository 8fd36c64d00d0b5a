"""A server whose device has too little memory: it ends with status 1 and says what it lacked.

usage: no_memory_server_test.py SERVER MODEL
"""

import os
import subprocess
import sys
import unittest

SERVER = MODEL = None
MIB = 1 << 20


def start(device_bytes):
    return subprocess.run(
        [SERVER, "--model", MODEL, "--device", "cuda", "--listen", "127.0.0.1:0", "--metrics-address", ""],
        env={**os.environ, "OVQ_SIMT_DEVICE_BYTES": str(device_bytes)},
        capture_output=True, text=True, timeout=60)


class NoMemory(unittest.TestCase):
    def expect(self, device_bytes, words):
        ended = start(device_bytes)
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertRegex(ended.stderr, words)

    def test_for_the_device(self):
        self.expect(1 << 10, "device 'cuda': memory of the GPU: [0-9]+ bytes needed at once, "
                             "1024 of 1024 bytes are free")

    def test_for_the_weights(self):
        self.expect(MIB // 2, f"{MODEL}: memory of the GPU: [0-9]+ bytes needed at once, [0-9]+ of "
                              f"{MIB // 2} bytes are free")

    def test_for_a_step(self):
        self.expect(200 * MIB, "scratch memory of a step of --max-batch-tokens: memory of the GPU: "
                               f"[0-9]+ bytes needed at once, [0-9]+ of {200 * MIB} bytes are free")


if __name__ == "__main__":
    SERVER, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
