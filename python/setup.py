"""Builds the extension with the project's CMake files: one description of how libdgc is compiled.

DGC_EXTENSION names one that is already built, which is then taken as it is.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PROJECT = pathlib.Path(__file__).resolve().parent.parent


class CMakeBuild(build_ext):
    def build_extension(self, extension: Extension) -> None:
        target = pathlib.Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.environ.get("DGC_EXTENSION") or self.built(), target)

    def built(self) -> pathlib.Path:
        folder = pathlib.Path(self.build_temp).resolve()
        options = [
            "-DCMAKE_BUILD_TYPE=Release",
            "-DDGC_WITH_PYTHON=ON",
            f"-DDGC_PYTHON_EXECUTABLE={sys.executable}",
            "-DDGC_BUILD_APPS=OFF",
            "-DDGC_BUILD_TESTS=OFF",
            "-DDGC_WITH_TORCH=OFF",
            "-DDGC_WITH_MPI=OFF",
            "-DDGC_WITH_GLOO=OFF",
        ]
        try:
            import pybind11  # pip's has its headers inside; Debian's has them where CMake looks

            options.append(f"-DDGC_PYBIND11_INCLUDE_DIR={pybind11.get_include()}")
        except ImportError:
            pass
        if shutil.which("ninja"):
            options.append("-GNinja")
        subprocess.run(["cmake", "-S", PROJECT, "-B", folder, *options], check=True)
        subprocess.run(
            ["cmake", "--build", folder, "--target", "dgc_python", "-j", str(os.cpu_count() or 1)],
            check=True,
        )
        return next((folder / "python" / "dgc").glob("_core*.so"))


version = re.search(
    r"project\(dgc VERSION ([\d.]+)", (PROJECT / "CMakeLists.txt").read_text()
).group(1)
setup(
    version=version,
    ext_modules=[Extension("dgc._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
