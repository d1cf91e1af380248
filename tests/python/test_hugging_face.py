"""test_hugging_face.py PROJECT: a few steps of examples/pytorch/hugging_face.py."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

PROJECT = pathlib.Path(sys.argv[1])
HAS_IT = all(importlib.util.find_spec(name) for name in ("transformers", "accelerate"))
LINE = re.compile(r"^step (\d+) loss (\d+\.\d+) message_ratio (\d+)$", re.MULTILINE)


@unittest.skipUnless(HAS_IT, "transformers and accelerate are not installed")
class HuggingFace(unittest.TestCase):
    def test_trainer(self):
        command = [sys.executable]
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        command += [str(PROJECT / "examples" / "pytorch" / "hugging_face.py"), "--steps", "20"]
        if shutil.which("bible") is None:
            command += ["--text", str(PROJECT / "docs" / "results.md")]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        # The Trainer's optimizer is known: nothing is to be said about it.
        self.assertNotIn("dgc.DGCState", done.stderr)
        found = [(int(s), float(loss), int(r)) for s, loss, r in LINE.findall(done.stdout)]
        self.assertEqual([step for step, _, _ in found], list(range(2, 21, 2)))
        self.assertLess(found[-1][1], found[0][1] - 0.5)
        # The schedule goes from 25 % to 0.1 %; tensors of one dimension are sent whole.
        self.assertLess(found[0][2], 30)
        self.assertGreater(found[-1][2], 90)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
