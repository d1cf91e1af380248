"""test_wheel.py PROJECT PYTHON: scripts/wheel makes a source archive and a wheel. In an empty virtual
environment that sees the PyTorch of PYTHON and nothing of the build, the wheel trains on two processes,
and mypy finds its types. Needs PyPI."""

import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

PROJECT, PYTHON = sys.argv[1:3]

# Two steps; every rank prints a hash of its parameters. Without NumPy, which PyTorch does not install.
SCRIPT = """
import pathlib, sys, zlib
sys.modules["numpy"] = None
import dgc, torch, torch.distributed as dist
assert pathlib.Path(dgc.__file__).is_relative_to(sys.prefix), dgc.__file__
dist.init_process_group("gloo")
torch.manual_seed(1)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 40))
optimizer = dgc.SGD(ddp.parameters(), lr=0.1, weight_decay=1e-4)
state = dgc.DGCState(ddp, optimizer=optimizer, ratio=0.01)
ddp.register_comm_hook(state, dgc.hook)
before = ddp.module.weight.detach().clone()
for step in range(2):
    optimizer.zero_grad()
    ddp(torch.randn(4, 30, generator=torch.Generator().manual_seed(dist.get_rank()))).square().sum().backward()
    optimizer.step()
assert not torch.equal(before, ddp.module.weight)
weights = ddp.module.weight.detach().contiguous().view(torch.uint8).flatten().tolist()
print(f"rank {dist.get_rank()} step {state.step} entries {state.stats.entries} hash {zlib.crc32(bytes(weights))}\\n", end="")
"""

# What a user writes, and the same with a mistake.
TYPED = """
import dgc
import torch

def use(model: torch.nn.Module) -> str:
    optimizer = dgc.SGD(model.parameters(), lr=0.1)
    state = dgc.DGCState(model, optimizer=optimizer, momentum=0.9, warmup=([0.25, 0.05], 500))
    ratio: float = state.stats.message_ratio if state.stats is not None else 1.0
    return f"{dgc.__version__} {ratio} {state.report()}"
"""
MISTAKE = ("momentum=0.9", "momentum='0.9'")


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        made = cls.folder / "made"
        cls.run_in([pathlib.Path(PROJECT) / "scripts" / "wheel", "--out", made, PYTHON])
        (cls.sdist,) = made.glob("*.tar.gz")
        (cls.wheel,) = made.glob("*.whl")
        cls.venv = venv = cls.folder / "venv"
        cls.run_in([PYTHON, "-m", "venv", venv])
        cls.run_in([venv / "bin" / "pip", "install", "--no-index", cls.wheel])
        # PyTorch is looked for behind what the environment has: a wheel of 200 MB need not be
        # installed again.
        cls.torch = torch = cls.run_in(
            [PYTHON, "-c", "import torch; print(torch.__path__[0])"]
        ).strip()
        (packages,) = (venv / "lib").glob("python3*/site-packages")
        (packages / "torch.pth").write_text(str(pathlib.Path(torch).parent))

    @classmethod
    def run_in(cls, command, **variables):
        done = subprocess.run(
            command,
            env={**cls.environment, **variables},
            cwd=cls.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}")
        return done.stdout

    def test_archive(self):
        """What building needs, and not the rest of the project."""
        with tarfile.open(self.sdist) as archive:
            names = {name.split("/", 1)[1] for name in archive.getnames()}
        self.assertLessEqual({"LICENSE", "PKG-INFO", "pyproject.toml", "python/README.md"}, names)
        kept = ("CMakeLists.txt", "cmake", "include", "python", "src")
        kept += ("LICENSE", "PKG-INFO", "pyproject.toml")
        self.assertEqual([name for name in names if name.split("/")[0] not in kept], [])
        self.assertEqual([name for name in names if "__pycache__" in name], [])

    def test_wheel(self):
        self.assertIn("manylinux_", self.wheel.name)
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            text = archive.read(metadata).decode()
        folders = {name.split("/")[0].split("-")[0] for name in names}
        self.assertEqual(folders, {"dgc", "dgc_torch", "dgc_torch.libs"})
        self.assertIn("dgc/py.typed", names)
        self.assertIn("\nLicense-Expression: Apache-2.0\n", text)
        self.assertNotIn("Requires-Dist", text)

    def test_two_processes(self):
        (self.folder / "train.py").write_text(SCRIPT)
        torchrun = [self.venv / "bin" / "python", "-m", "torch.distributed.run", "--standalone"]
        if "dist-packages" in self.torch:  # docs/pytorch.md: Debian's PyTorch
            torchrun += ["--redirects", "9:1", "--tee", "9:1"]
        out = self.run_in(
            [*torchrun, "--nproc_per_node", "2", "train.py"],
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
        )
        ranks = sorted(line for line in out.splitlines() if line.startswith("rank "))
        self.assertEqual(len(ranks), 2, out)
        for number, line in enumerate(ranks):
            # 12 of 1200 weights and 40 biases
            self.assertRegex(line, rf"^rank {number} step 2 entries 52 hash \d+$")
        self.assertEqual(ranks[0].split("hash")[1], ranks[1].split("hash")[1])

    def test_types(self):
        self.run_in([self.venv / "bin" / "pip", "install", "--quiet", "mypy"])
        mypy = [self.venv / "bin" / "mypy", "--strict"]
        self.run_in([*mypy, "--package", "dgc"])
        (self.folder / "typed.py").write_text(TYPED)
        self.run_in([*mypy, "typed.py"])
        (self.folder / "typed.py").write_text(TYPED.replace(*MISTAKE))
        with self.assertRaisesRegex(AssertionError, 'Argument "momentum" to "DGCState"'):
            self.run_in([*mypy, "typed.py"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
