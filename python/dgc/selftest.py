"""python -m dgc.selftest: whether the steps on this device are those of libdgc, bit for bit."""

import argparse
import importlib
import os
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

import torch

from . import _core, _paths
from ._options import Options
from ._sequences import SEQUENCES, Case, Counts, compare, quicken_interpreter

EDGES = (0, 1, 2, 31, 32, 33, 255, 256, 257, 4095, 4096, 4097, 8191, 8192, 8193)
FEW = (0, 1, 33, 256, 257, 4096, 4097)
MIDDLE = 100_003
LARGE = 1_000_007

# What every sequence is run with, in turn.
OPTIONS: Tuple[Dict[str, Any], ...] = (
    {"values": "fp32"},
    {"values": "fp16", "nesterov": True},
    {"values": "int8", "masking": False},
    {"values": "bf16", "momentum": 0.0},
    {"values": "sign"},
    {"values": "fp16", "momentum_correction": "global"},
    {"values": "fp32", "momentum_correction": "global", "nesterov": True},
    {"values": "fp16", "indices": "rice", "clip_norm": 1.0},
    {"values": "fp32", "indices": "runs"},
    {"values": "int8", "indices": "bitmap"},
)


def cases(full: bool, only: str = "") -> List[Case]:
    """Every sequence, with the sizes in one bucket; in full with two sets of options each, and with a
    large tensor."""
    found: List[Case] = []
    for number, sequence in enumerate(SEQUENCES):
        if full:
            for i in (0, 3):  # in turn: a sequence has them with the next sets
                some = OPTIONS[(number + i) % len(OPTIONS)]
                found.append(Case(sequence, EDGES, some))
            some = OPTIONS[(number + 1) % len(OPTIONS)]
            found.append(Case(sequence, (LARGE,), some, 6, ratios="0.05,0.01,0.001:2"))
        else:
            some = OPTIONS[number % len(OPTIONS)]
            found.append(Case(sequence, FEW, some, 6, ratios="0.25,0.05,0.01:1"))
    # Tensors that are sent whole, of each type of values, beside others.
    for kind in ("fp32", "fp16", "bf16", "int8", "sign"):
        options = {"values": kind, "dense_values": kind}
        found.append(Case("gaussian", (4097, 300, 1000, 1), options, 3, dense=(1, 3)))
        found.append(Case("denormals", (300, 2049), options, 1, dense=(0,)))
    found.append(Case("gaussian", (5000, 257), {"values": "fp16"}, 3, ratios="1"))
    found.append(Case("nonfinite", (300, 2049), {"clip_norm": 1.0}, 4, dense=(0,)))
    if not full:
        found.append(Case("gaussian", (MIDDLE,), {"values": "fp16"}, 3, ratios="0.001"))
    return [case for case in found if only in ("", case.sequence)]


def run(some: List[Case], path: str, device: torch.device, say: Any = None) -> Counts:
    if path == "triton" and device.type == "cpu":
        quicken_interpreter()
    counts = Counts()
    for number, case in enumerate(some):
        begun = time.monotonic()
        compare(case, lambda setting, devices: _paths.make(path, setting, devices), device, counts)
        if say is not None:
            text = f"{number + 1} of {len(some)}: {case.sequence}, {len(case.sizes)} tensors, "
            say(f"{text}{case.options}: {time.monotonic() - begun:.1f} s")
    return counts


DESCRIPTION = """Compares the steps on a GPU with libdgc, bit for bit: the bytes of messages, and u and v.

The gradients are those that are hard to select from: ties, all equal, jumps of the scale, denormals,
NaN and Inf, ratios that change, sizes around the ends of blocks. It takes no training script and no
second process."""

EPILOG = """examples:
  python -m dgc.selftest                    the fused kernels on this GPU, a minute
  python -m dgc.selftest --full             everything, some minutes
  python -m dgc.selftest --path torch       torch operations in place of the kernels

Without a GPU the kernels run on the CPU, in Triton's interpreter, which is what the project's own
tests do. It runs programs one after the other, through NumPy: that proves what is selected and which
bits come out. It proves nothing about races or speed. Exits with 0 if there is no difference, with 1
if there is one, and with 2 if nothing could be tested.

Please send the last lines of the output where something differs: docs/gpu.md says where to."""


def main(words: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dgc.selftest",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", metavar="NAME", help="cuda, cuda:1 or cpu; default: a GPU if there is one"
    )
    parser.add_argument(
        "--path",
        choices=("triton", "torch"),
        default="triton",
        help="what is compared with libdgc: the fused kernels, or torch operations",
    )
    parser.add_argument("--full", action="store_true", help="all sizes with all sequences")
    parser.add_argument("--only", choices=list(SEQUENCES), default="", help="one sequence")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    given = parser.parse_args(words)
    try:
        device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"PyTorch {torch.__version__} finds no GPU")
    except RuntimeError as error:
        print(f"dgc.selftest: --device {given.device}: {error}", file=sys.stderr)
        return 2
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        where = "the CPU"
        if given.path == "triton":
            where += ", in Triton's interpreter: this says nothing about races or speed"
    else:
        where = torch.cuda.get_device_name(device)
    try:
        _paths.choose(Options.read({"path": given.path}), [device])
        if given.path == "triton":
            triton: Any = importlib.import_module("triton")
            print(f"Triton {triton.__version__}, ", end="")
    except _core.Error as error:
        print(f"dgc.selftest: {error}", file=sys.stderr)
        return 2
    print(
        f"PyTorch {torch.__version__}, dgc {_core.__version__}; {given.path} on {where}", flush=True
    )
    begun = time.monotonic()
    counts = run(
        cases(given.full, given.only),
        given.path,
        device,
        (lambda line: print(line, flush=True)) if given.verbose else None,
    )
    for difference in counts.differences[:20]:
        print(f"DIFFERENT: {difference}")
    print(f"{counts}. {time.monotonic() - begun:.0f} s.")
    return 1 if counts.differences else 0


if __name__ == "__main__":
    sys.exit(main())
