"""test_example.py SCRIPT DATA: examples/pytorch under torch.distributed.run, on four ranks."""

import os
import pathlib
import socket
import subprocess
import sys
import unittest

SCRIPT, DATA = sys.argv[1:3]


class Example(unittest.TestCase):
    def test_trains(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # docs/pytorch.md says why 9:1.
        command = [sys.executable, "-m", "torch.distributed.run", "--redirects", "9:1", "--tee", "9:1", "--nproc_per_node", "4",
                   "--master_addr", "127.0.0.1", "--master_port", str(port), SCRIPT, "--data", DATA, "--steps", "20"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, timeout=280)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^step 20 accuracy \d+\.\d\d loss \d\.\d+ message_ratio [67]\n$")

    def test_is_short(self):
        lines = pathlib.Path(SCRIPT).read_text().splitlines()
        self.assertLessEqual(len(lines), 60)
        self.assertEqual(len([line for line in lines if "dgc." in line and "import" not in line]), 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
