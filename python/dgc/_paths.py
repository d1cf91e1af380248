"""Which of the three ways a state's steps go: libdgc ("core"), torch operations ("torch"), or fused
kernels ("triton")."""

import importlib.util
import os
from typing import List, Sequence

import torch

from . import _core
from ._options import Options
from ._residuals import CoreResiduals, Residuals, Setting
from ._torch_residuals import TorchResiduals

PATHS = ("auto", "core", "torch", "triton")
VARIABLE = "DGC_PATH"  # instead of "auto"


def _fail(options: Options, what: str, problem: str, hint: str) -> None:
    _core.fail("invalid_argument", options.owner, what, problem, hint)


def is_interpreted() -> bool:
    """Whether Triton runs kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _is_one_gpu(devices: Sequence[torch.device]) -> bool:
    return len(set(devices)) == 1 and devices[0].type == "cuda"


def _problem_with_triton(devices: Sequence[torch.device]) -> List[str]:
    """What is wrong, and what to do; nothing where kernels can run."""
    if not _has_triton():
        return ["needs the package triton, which is not installed", "pip install triton"]
    if _is_one_gpu(devices):
        return []
    if not all(device.type == "cpu" for device in devices):
        return ["needs all parameters on one GPU", "use 'torch'"]
    if not is_interpreted():
        return [
            "needs all parameters on one GPU, and they are on the CPU",
            "use 'auto'; for tests, TRITON_INTERPRET=1 runs the kernels on the CPU, slowly",
        ]
    return []


# Elements of a tensor: positions have 32 bits in the kernels, with a sign.
_MOST = 2**31 - 1
# Values that the kernels code.
TRITON_VALUES = ("fp32", "fp16", "bf16", "int8", "sign")


def _lacking(options: Options, largest: int) -> str:
    """What the kernels cannot do of what is asked for."""
    for values in (options.values, options.dense_values):
        if values not in TRITON_VALUES:
            return f"does not know values of {values}"
    if options.decay != 1.0:
        return "does not know a residual that decays"
    return f"cannot have a tensor of {largest:,} elements" if largest > _MOST else ""


def choose(options: Options, devices: Sequence[torch.device], largest: int = 0) -> str:
    """The path for parameters on these devices, the largest of so many elements."""
    asked, lacking = options.path, _lacking(options, largest)
    what = f"path '{asked}'"
    if asked == "auto":
        asked = os.environ.get(VARIABLE) or "auto"
        what = f"{VARIABLE}={asked}"
        if asked not in PATHS:
            _fail(
                options, what, f"is not one of {', '.join(PATHS)}", f"for example {VARIABLE}=torch"
            )
    on_cpu = all(device.type == "cpu" for device in devices)
    if asked == "core" and not on_cpu:
        _fail(options, what, "needs all parameters on the CPU", "use 'torch' or 'auto'")
    if asked == "triton":
        wrong = _problem_with_triton(devices)
        if lacking:
            wrong = [lacking, "use 'torch'"]
        if wrong:
            _fail(options, what, *wrong)
    if asked != "auto":
        return asked
    if on_cpu:
        return "core"
    fits = _is_one_gpu(devices) and not lacking
    return "triton" if fits and _has_triton() else "torch"


def make(path: str, setting: Setting, devices: Sequence[torch.device]) -> Residuals:
    if path == "core":
        return CoreResiduals(setting)
    if path == "torch":
        return TorchResiduals(setting, devices)
    from ._triton_residuals import TritonResiduals  # importing Triton takes a second

    return TritonResiduals(setting, devices)
