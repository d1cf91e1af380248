#!/usr/bin/env python3
"""test_libtorch_example.py MNIST DATA [MPIRUN…]: the example on threads, MPI and Gloo ends with the same parameters."""

import os
import re
import socket
import subprocess
import sys
import unittest

MNIST, DATA, *MPIRUN = sys.argv[1:]
WORKERS = 4
# Into the second stage of the warm-up, and past it.
OPTIONS = ["--data", DATA, "--steps", "12", "--schedule", "0.25,0.001:6"]
LAST = re.compile(r"^final accuracy [\d.]+ loss [\d.]+ message_ratio ([\d.]+) parameters_hash ([0-9a-f]+)$", re.M)


def clean(**extra: str) -> dict:
    """The environment without what would choose an engine."""
    chosen = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DGC_STORE")
    return {**{k: v for k, v in os.environ.items() if k not in chosen and not k.startswith("OMPI_")}, **extra}


def run(command: list, env: dict) -> subprocess.Popen:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


class Example(unittest.TestCase):
    def result(self, *processes: subprocess.Popen) -> tuple:
        """Hash and message ratio, from the one process that prints them."""
        try:
            outputs = [p.communicate(timeout=240) for p in processes]
        finally:
            for p in processes:
                p.kill()
        for p, (out, err) in zip(processes, outputs):
            self.assertEqual(p.returncode, 0, out + err)
        lines = [m for out, _ in outputs for m in LAST.finditer(out)]
        self.assertEqual(len(lines), 1, outputs)
        return lines[0].group(2), float(lines[0].group(1))

    def by_threads(self, workers: int = WORKERS, *more: str) -> tuple:
        return self.result(run([MNIST, *OPTIONS, "--threads", str(workers), *more], clean()))

    def test_engines_agree(self) -> None:
        expected = self.by_threads()
        self.assertGreater(expected[1], 100.0)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        ranks = [clean(RANK=str(r), WORLD_SIZE=str(WORKERS), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                       DGC_INTERFACE="lo") for r in range(WORKERS)]
        self.assertEqual(self.result(*[run([MNIST, *OPTIONS], env) for env in ranks]), expected)
        if MPIRUN:
            self.assertEqual(self.result(run([*MPIRUN, "-n", str(WORKERS), MNIST, *OPTIONS], clean())), expected)

    def test_options(self) -> None:
        one = self.result(run([MNIST, *OPTIONS], clean()))  # alone
        self.assertEqual(one, self.by_threads(1))
        self.assertNotEqual(one[0], self.by_threads(1, "--seed", "2")[0])
        dense = self.by_threads(2, "--schedule", "1")
        self.assertAlmostEqual(dense[1], 1.0, delta=0.05)
        for words, expected in ([["--epoch", "3"], "--epochs"], [["--data", "/nowhere"], "/nowhere"]):
            wrong = run([MNIST, *words], clean())
            self.assertIn(expected, wrong.communicate()[1])
            self.assertEqual(wrong.returncode, 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
