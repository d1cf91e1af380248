"""test_example.py PROJECT DATA: examples/pytorch as docs/pytorch.md says it is started."""

import gzip
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import unittest

PROJECT, DATA = (pathlib.Path(a) for a in sys.argv[1:3])
FOLDER = PROJECT / "examples" / "pytorch"
# Debian's PyTorch needs its own words for it.
TORCHRUN = re.compile(r"^    (python3 -m torch\.distributed\.run .*)$", re.MULTILINE)
SEVERAL_MACHINES = re.compile(r"^    (torchrun --nnodes .*)$", re.MULTILINE)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program(folder, name, text):
    file = folder / name
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)


def cut(folder):
    """The first pictures of the data set: 32 steps an epoch."""
    for part, count in (("train", 4096), ("t10k", 1000)):
        for kind, header, size in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
            with gzip.open(DATA / f"{part}-{kind}-ubyte.gz") as file:
                (folder / f"{part}-{kind}-ubyte").write_bytes(file.read(header + count * size))


class Example(unittest.TestCase):
    def test_several_machines(self):
        """Both on this one: four ranks in all."""
        with tempfile.TemporaryDirectory() as name:
            cut(pathlib.Path(name))
            self.train(name)

    def train(self, data):
        manual = (PROJECT / "docs" / "pytorch.md").read_text()
        (command,), (torchrun,) = SEVERAL_MACHINES.findall(manual), TORCHRUN.findall(manual)
        command = command.replace("node0:29500", f"127.0.0.1:{free_port()}").replace(
            "torchrun", torchrun
        )
        command = command.replace("python3", shlex.quote(sys.executable))
        command = command.replace(
            "--nnodes", "--monitor_interval 0.1 --nnodes"
        )  # it looks after workers every 5 s
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        nodes = []
        for node in range(2):
            here = (
                command.replace("--node_rank 0", f"--node_rank {node}")
                + f" --data {shlex.quote(data)} --steps 20"
            )
            nodes.append(
                subprocess.Popen(
                    shlex.split(here),
                    cwd=PROJECT,
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        outputs = [node.communicate(timeout=280) for node in nodes]
        self.assertEqual([node.returncode for node in nodes], [0, 0], outputs)
        self.assertRegex(
            outputs[0][0], r"^step 20 accuracy \d+\.\d\d loss \d\.\d+ message_ratio [67]\d\n$"
        )
        self.assertEqual(outputs[1][0], "")

    def test_slurm(self):
        """srun, scontrol and torchrun are stand-ins, which show what they are asked for."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            program(folder, "scontrol", 'printf "alpha\\nbeta\\n"')
            program(folder, "srun", 'for n in 0 1; do SLURM_NODEID=$n "$@"; done')
            program(folder, "torchrun", 'echo "$GLOO_SOCKET_IFNAME" "$@"')
            environment = {
                **os.environ,
                "PATH": f"{name}:{os.environ['PATH']}",
                "SLURM_NNODES": "2",
                "SLURM_JOB_NODELIST": "[alpha,beta]",
            }
            out = subprocess.run(
                ["bash", FOLDER / "slurm.sh"],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        expected = (
            "eth0 --nnodes 2 --node_rank {} --nproc_per_node 4 --rdzv_backend static --rdzv_endpoint alpha:29500 "
            "examples/pytorch/train_mnist.py --epochs 5"
        )
        self.assertEqual(out.splitlines(), [expected.format(0), expected.format(1)])

    def test_two_lines_are_new(self):
        lines = (FOLDER / "train_mnist.py").read_text().splitlines()
        self.assertEqual(
            len([line for line in lines if "dgc." in line and "import" not in line]), 2
        )


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
