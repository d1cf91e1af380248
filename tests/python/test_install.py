"""test_install.py PACKAGE EXTENSION: pip installs the package into a virtual environment, where it
imports and works."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PACKAGE, EXTENSION = (pathlib.Path(a) for a in sys.argv[1:3])

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
    def test_pip(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            # A copy, for setuptools leaves folders behind. CMakeLists.txt has the version.
            shutil.copytree(
                PACKAGE,
                folder / "source" / "python",
                ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"),
            )
            shutil.copy(PACKAGE.parent / "CMakeLists.txt", folder / "source")
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "venv",
                    "--system-site-packages",
                    "--without-pip",
                    folder / "venv",
                ],
                check=True,
            )
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            environment.update(
                DGC_EXTENSION=str(EXTENSION),
                GLOO_SOCKET_IFNAME="lo",
                WANTED=name,
                PIP_DISABLE_PIP_VERSION_CHECK="1",
            )
            python = folder / "venv" / "bin" / "python"
            # The system's pip: making one for each environment takes half a minute.
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "--python",
                    python,
                    "install",
                    "--quiet",
                    "--no-build-isolation",
                    "--no-index",
                    folder / "source" / "python",
                ],
                check=True,
                env=environment,
            )
            out = subprocess.run(
                [python, "-c", SCRIPT],
                check=True,
                env=environment,
                capture_output=True,
                text=True,
                cwd=name,
            ).stdout
            self.assertRegex(out, r"^entries 12 version \d+\.\d+\.\d+\n$")
            installed = next((folder / "venv" / "lib").glob("python3*/site-packages/dgc"))
            self.assertTrue(
                (installed / "py.typed").exists() and (installed / "_core.pyi").exists()
            )


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
