#!/usr/bin/env python3
"""test_libtorch.py MNIST DATA [MPIRUN…]: examples/libtorch as a user starts it.

Every start takes more than a second for libtorch and the data set, so programs that do not depend
on each other run side by side, and train on few images.
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

MNIST, DATA, *MPIRUN = sys.argv[1:]
WORKERS = 3  # which does not divide the batch
# 8 or 9 steps an epoch: into the second epoch, and past the warm-up.
OPTIONS = ["--data", DATA, "--steps", "12", "--schedule", "0.25,0.001:6", "--examples", "1024", "--test-examples", "500",
           "--log-every", "4"]
LAST = re.compile(r"^final accuracy [\d.]+ loss [\d.]+ message_ratio ([\d.]+) parameters_hash ([0-9a-f]+)$", re.M)


def clean(**extra: str) -> dict:
    """The environment without what would choose an engine."""
    chosen = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DGC_STORE")
    return {**{k: v for k, v in os.environ.items() if k not in chosen and not k.startswith("OMPI_")}, **extra}


def run(command: list, env: dict) -> subprocess.Popen:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


class Example(unittest.TestCase):
    def setUp(self) -> None:
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="dgc-example-"))
        self.addCleanup(shutil.rmtree, self.work)
        self.started: list[subprocess.Popen] = []
        self.addCleanup(self.end_all)

    def end_all(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def start(self, *words: str, env: dict | None = None, launcher: tuple = ()) -> subprocess.Popen:
        self.started.append(run([*launcher, MNIST, *words], env or clean()))
        return self.started[-1]

    def output(self, process: subprocess.Popen) -> str:
        out, err = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 0, out + err)
        return out

    def result(self, *processes: subprocess.Popen) -> tuple:
        """Hash and message ratio, from the one process that prints them."""
        outputs = [self.output(process) for process in processes]
        lines = [m for out in outputs for m in LAST.finditer(out)]
        self.assertEqual(len(lines), 1, outputs)
        return lines[0].group(2), float(lines[0].group(1))

    def refused(self, process: subprocess.Popen, *expected: str) -> None:
        out, err = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 1, out + err)
        for text in expected:
            self.assertIn(text, err)

    def by_threads(self, workers: int, *more: str) -> subprocess.Popen:
        return self.start(*OPTIONS, "--threads", str(workers), *more)

    def test_engines_agree(self) -> None:
        saved = self.work / "saved"
        threads = self.by_threads(WORKERS, "--checkpoints", str(saved), "--checkpoint-every", "5")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        ranks = [self.start(*OPTIONS, env=clean(RANK=str(r), WORLD_SIZE=str(WORKERS), MASTER_ADDR="127.0.0.1",
                                                MASTER_PORT=port, DGC_INTERFACE="lo")) for r in range(WORKERS)]
        mpi = self.start(*OPTIONS, launcher=(*MPIRUN, "-n", str(WORKERS))) if MPIRUN else None
        expected = self.result(threads)
        self.assertGreater(expected[1], 100.0)
        self.assertEqual(self.result(*ranks), expected)
        if mpi is not None:
            self.assertEqual(self.result(mpi), expected)

        # From step 10, in the middle of an epoch, it goes on to the same parameters.
        self.assertEqual(sorted(p.name for p in saved.iterdir()), ["step-000000000010", "step-000000000012"])
        other = self.work / "other"
        shutil.copytree(saved, other)
        shutil.rmtree(saved / "step-000000000012")
        resumed = self.by_threads(WORKERS, "--checkpoints", str(saved))
        wrong = self.by_threads(WORKERS, "--checkpoints", str(other), "--seed", "2")
        out = self.output(resumed)
        self.assertIn("resumed from " + str(saved / "step-000000000010"), out)
        last = LAST.search(out)
        self.assertEqual(last.group(2), expected[0])
        # Its second step has the hash of the parameters in the message: 8 bytes more.
        self.assertLess(abs(float(last.group(1)) / expected[1] - 1), 0.01)
        self.refused(wrong, "is of another run", "seed 1", "seed 2")

    def test_options(self) -> None:
        alone = self.start(*OPTIONS)
        one = self.by_threads(1)
        seeded = self.by_threads(1, "--seed", "2")
        dense = self.by_threads(2, "--schedule", "1")
        usage = self.start("--help")
        wrong = [(self.start(*words), expected) for words, expected in (
            (["--epoch", "3"], ["--epoch", "--epochs"]), (["--data", "/nowhere"], ["/nowhere", "dataset-fashion-mnist"]),
            (["--data", DATA, "--threads", "3", "--batch", "2"], ["--batch 2", "3 workers"]),
            (["--data", DATA, "--epochs", "0"], ["--epochs '0'", "from 1"]), (["--data"], ["--data needs a value"]))]
        result = self.result(alone)
        self.assertEqual(result, self.result(one))
        self.assertNotEqual(result[0], self.result(seeded)[0])
        out = self.output(dense)
        # Everything is sent. Gradients that are 0 need no value in a message, which makes it a little smaller.
        self.assertTrue(1.0 <= float(LAST.search(out).group(1)) <= 1.5, out)
        self.assertRegex(out, r"(?m)^ +8 +1\.00 +[\d.]+ +[\d.]+ +[678]\d\d\.\d\d +1\.[0-5]x$")  # step, epoch, loss, sent, message, ratio
        self.assertRegex(out, r"(?m)^epoch 1: accuracy [\d.]+ %$")
        text = self.output(usage)
        for option in ("--epochs", "--schedule", "--checkpoints", "--threads"):
            self.assertIn(option, text)
        for process, expected in wrong:
            self.refused(process, *expected)

    def test_a_signal_ends_it_after_a_step(self) -> None:
        saved = self.work / "saved"
        process = self.start("--data", DATA, "--threads", "2", "--epochs", "50", "--log-every", "1", "--checkpoints", str(saved))
        for line in process.stdout:
            if re.match(r" +1 ", line):
                break
        process.send_signal(signal.SIGTERM)
        stopped = re.search(r"(?m)^stopped after step (\d+); start again to resume$", self.output(process))
        self.assertTrue(stopped)
        self.assertTrue((saved / f"step-{int(stopped.group(1)):012}" / "manifest.json").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
