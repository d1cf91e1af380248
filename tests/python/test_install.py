"""test_install.py PROJECT BUILD CMAKE VERSION: CMake installs the package into a virtual environment,
where it imports and works. Needs nothing from PyPI; test_wheel.py has the way with pip."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROJECT, BUILD, CMAKE, VERSION = sys.argv[1:5]
SOURCE = pathlib.Path(PROJECT) / "python" / "dgc"
WITHOUT_TORCH = pathlib.Path(__file__).with_name("without_torch.py")

SCRIPT = """
import os, dgc, torch, torch.distributed as dist
assert os.path.dirname(dgc.__file__).startswith(os.environ["WANTED"]), dgc.__file__
dist.init_process_group("gloo", init_method="file://" + os.environ["WANTED"] + "/store", rank=0, world_size=1)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 40))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
state = dgc.DGCState(ddp, optimizer=optimizer, ratio=0.01)
ddp.register_comm_hook(state, dgc.hook)
ddp(torch.ones(2, 30)).sum().backward()
print("entries", int((ddp.module.weight.grad != 0).sum()), "version", dgc.__version__)
"""


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.venv = pathlib.Path(cls.temporary.name) / "venv"
        for command in (
            [sys.executable, "-m", "venv", "--without-pip", cls.venv],
            [CMAKE, "--install", BUILD, "--component", "python", "--prefix", cls.venv],
        ):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (cls.packages,) = (cls.venv / "lib").glob("python3*/site-packages")

    def run_python(self, *arguments, **variables):
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return subprocess.run(
            [self.venv / "bin" / "python", "-B", *arguments],
            env={**environment, **variables},
            cwd=self.temporary.name,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def test_files(self):
        here = {file.name for file in SOURCE.iterdir() if file.is_file()}
        there = {file.name for file in (self.packages / "dgc").iterdir()}
        (extension,) = there - here
        self.assertRegex(extension, r"^_core\.cpython-.*\.so$")
        self.assertEqual(here - there, set())
        self.assertLessEqual({"__init__.py", "_core.pyi", "py.typed"}, there)

    def test_works(self):
        # The PyTorch of this interpreter, behind what the environment has itself.
        torch = os.pathsep.join(folder for folder in sys.path if folder.endswith("-packages"))
        out = self.run_python(
            "-c",
            SCRIPT,
            PYTHONPATH=f"{self.packages}{os.pathsep}{torch}",
            GLOO_SOCKET_IFNAME="lo",
            WANTED=self.temporary.name,
        )
        self.assertEqual(out, f"entries 12 version {VERSION}\n")

    def test_without_torch(self):
        out = self.run_python("-S", WITHOUT_TORCH, self.packages, VERSION)
        self.assertIn("the extension works", out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
