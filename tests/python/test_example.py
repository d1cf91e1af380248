"""test_example.py PROJECT DATA: examples/pytorch and the scripts of docs/multi-node.md, as that page
says they are started. scripts/reproduce/two-hosts runs the page on two hosts."""

import gzip
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from ports import free_port

PROJECT, DATA = (pathlib.Path(a) for a in sys.argv[1:3])
FOLDER = PROJECT / "examples" / "pytorch"
PAGE = (PROJECT / "docs" / "multi-node.md").read_text()


def commands(start):
    """The page's commands that begin with these words."""
    return re.findall(rf"^    ({re.escape(start)}.*)$", PAGE, re.MULTILINE)


def scripts():
    """Name: text of the scripts that the page tells to save."""
    found = r"Save it as `([\w.]+)`:\n\n```python\n(.*?)^```$"
    return dict(re.findall(found, PAGE, re.MULTILINE | re.DOTALL))


def with_this_python(command):
    """Debian's PyTorch has no torchrun: the page has words for it, which every version knows."""
    (torchrun,) = commands("python3 -m torch.distributed.run")
    command = re.sub(r"^torchrun", torchrun, command)
    command = re.sub(r"^python3", shlex.quote(sys.executable), command)
    # It looks after workers every 5 s.
    return command.replace("--redirects", "--monitor_interval 0.1 --redirects")


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
        both = commands("torchrun --nnodes")
        self.assertEqual(both[1], both[0].replace("--node_rank 0", "--node_rank 1"))
        script = f"examples/pytorch/train_mnist.py --data {shlex.quote(data)} --steps 20"
        endpoint = f"127.0.0.1:{free_port()}"
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        nodes = []
        for command in both:
            here = with_this_python(command).replace("node0:29500", endpoint)
            here = here.replace("train.py", script)
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
            outputs[0][0], r"^step 20 accuracy \d+\.\d\d loss \d\.\d+ message_ratio [78]\d\n$"
        )
        self.assertEqual(outputs[1][0], "")

    def test_plain_script_and_one_machine(self):
        """The page's own scripts, by its own commands."""
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        with tempfile.TemporaryDirectory() as name:
            for file, text in scripts().items():
                (pathlib.Path(name) / file).write_text(text)
            for (command,), last in (
                (commands("python3 plain.py"), r"epoch 9 loss 0\.\d+\n$"),
                (
                    commands("torchrun --nproc_per_node"),
                    r"epoch 9 loss 0\.\d+ sent 1/6\d of a gradient\n$",
                ),
            ):
                with self.subTest(command=command):
                    out = subprocess.run(
                        shlex.split(with_this_python(command)),
                        cwd=name,
                        env=environment,
                        text=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        timeout=200,
                    )
                    self.assertEqual(out.returncode, 0, out.stderr)
                    self.assertRegex(out.stdout, last)

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
