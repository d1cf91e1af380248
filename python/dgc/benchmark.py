"""python -m dgc.benchmark: how long a compression step takes on this device, and whether it is right."""

import argparse
import ctypes
import datetime
import importlib
import importlib.util
import json
import os
import platform
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from . import _core, _paths
from ._options import Options
from ._parameters import Spec
from ._residuals import Given, Part, Residuals, Setting

DESCRIPTION = """Measures a compression step of one bucket: correct, check, select, code, mask.

It compares, on the same gradients:
  bare update        u = m u + g, v = v + u, and nothing else: the floor, 20 bytes an element
  torch.topk         the k largest of |v|, and nothing else
  torch operations   the step as dgc.hook makes it without Triton
  fused kernels      the step as dgc.hook makes it with Triton, on a GPU
  libdgc             the step on the CPU, where --device is cpu

First it checks that messages, u and v of each way are those of libdgc, bit for bit, over some steps."""

EPILOG = """examples:
  python -m dgc.benchmark                             25.6 million elements on this GPU
  python -m dgc.benchmark --elements 100000000        as large as a figure that is known for topk
  python -m dgc.benchmark --ratio 0.01 --values int8
  python -m dgc.benchmark --device cpu --elements 1000000   no GPU needed: torch operations and libdgc

The table goes to the screen, and everything, with the versions and the name of the device, to the file
of --json. No GPU has been at hand for this project: please send the file (docs/gpu.md says where to).
Exits with 0; with 1 if a result differs from libdgc's; with 2 if nothing could be measured."""

_CHECKED_STEPS = 4


class Bucket:
    """Tensors, and gradients of them that change from step to step."""

    def __init__(self, given: argparse.Namespace, device: torch.device) -> None:
        each, rest = divmod(given.elements, given.tensors)
        sizes = [each + (i < rest) for i in range(given.tensors)]
        specs = [Spec(f"tensor {i}", [n], False, n) for i, n in enumerate(sizes)]
        options = Options.read({"values": given.values, "momentum": 0.9})
        schedule = _core.Schedule(given.ratio)
        self.device, self.sizes = device, sizes
        self.setting = Setting(specs, 0, 1, schedule, options, 0)
        self.buffer = torch.zeros(given.elements, device=device)
        self.parts = [Part(i, part, True) for i, part in enumerate(torch.split(self.buffer, sizes))]
        self.notice = _core.Notice(0, [True] * len(sizes))
        room = sum(_core.frame_bound(n, n, "fp32", "auto") for n in sizes) + 4096
        self.message = torch.zeros(room, dtype=torch.uint8)
        chance = torch.Generator().manual_seed(1)
        # Elements differ in size, as those of layers do.
        scale = torch.rand(given.elements, generator=chance).pow_(4)
        self.gradients = [
            (torch.randn(given.elements, generator=chance) * scale).to(device) for _ in range(3)
        ]

    def next(self, step: int) -> None:
        self.buffer.copy_(self.gradients[step % len(self.gradients)])

    def compress(self, residuals: Residuals) -> int:
        return residuals.compress(Given(self.parts, self.notice, 1.0, None), self.message)


def _differences(bucket: Bucket, path: str, given: argparse.Namespace) -> List[str]:
    """Between a path and libdgc, over some steps."""
    cpu = torch.device("cpu")
    other = bucket if bucket.device == cpu else Bucket(given, cpu)
    reference = _paths.make("core", other.setting, [cpu] * len(other.sizes))
    residuals = _paths.make(path, bucket.setting, [bucket.device] * len(bucket.sizes))
    for step in range(_CHECKED_STEPS):
        messages = []
        for one, where in ((residuals, bucket), (reference, other)):
            where.next(step)
            size = where.compress(one)
            messages.append(ctypes.string_at(where.message.data_ptr(), size))
            one.commit([])
        if messages[0] != messages[1]:
            return [f"{path}: the message of step {step} differs"]
        for tensor in range(len(bucket.sizes)):
            for name in ("velocity", "residual"):
                ours, theirs = (one.part(name, tensor) for one in (residuals, reference))
                assert ours is not None and theirs is not None
                if not torch.equal(ours.cpu().view(torch.int32), theirs.view(torch.int32)):
                    return [f"{path}: {name} of tensor {tensor} differs after step {step}"]
    return []


def _times(bucket: Bucket, work: Callable[[], Any], given: argparse.Namespace) -> List[float]:
    """Milliseconds of each step, the host's work and the device's."""

    def settle() -> None:
        if bucket.device.type == "cuda":
            torch.cuda.synchronize(bucket.device)

    found = []
    for step in range(given.warmup + given.steps):
        bucket.next(step)
        settle()
        begun = time.perf_counter()
        work()
        settle()
        if step >= given.warmup:
            found.append(1000.0 * (time.perf_counter() - begun))
    return found


def _bare_update(bucket: Bucket) -> Callable[[], Any]:
    total = bucket.buffer.numel()
    u, v = (torch.zeros(total, device=bucket.device) for _ in range(2))
    if bucket.device.type == "cpu" or importlib.util.find_spec("triton") is None:

        def update() -> None:
            torch.add(bucket.buffer, u, alpha=0.9, out=u)
            v.add_(u)

        return update
    from ._triton_residuals import bare_update

    return bare_update(bucket.buffer, u, v)


def _topk(bucket: Bucket) -> Callable[[], Any]:
    v = torch.split(torch.randn(bucket.buffer.numel(), device=bucket.device), bucket.sizes)
    counts = [_core.entries_at(bucket.setting.schedule.ratio_at(0), n) for n in bucket.sizes]
    return lambda: [torch.topk(one.abs(), k) for one, k in zip(v, counts)]


def _step(bucket: Bucket, path: str, sizes: Dict[str, int]) -> Callable[[], Any]:
    residuals = _paths.make(path, bucket.setting, [bucket.device] * len(bucket.sizes))

    def work() -> None:
        sizes["message"] = bucket.compress(residuals)
        residuals.commit([])

    return work


def _ways(device: torch.device) -> Tuple[List[Tuple[str, str]], List[str]]:
    """Names and paths of what is measured, and what is not, and why."""
    ways, without = [("torch operations", "torch")], []
    if device.type == "cpu":
        ways.append(("libdgc", "core"))
        without.append(
            "fused kernels: not measured, there is no GPU; python -m dgc.selftest checks them"
        )
    elif importlib.util.find_spec("triton") is None:
        without.append("fused kernels: not measured, Triton is not installed (pip install triton)")
    else:
        ways.append(("fused kernels", "triton"))
    return ways, without


def _machine(device: torch.device) -> Dict[str, Any]:
    facts: Dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "dgc": _core.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": device.type,
        "threads": torch.get_num_threads(),
    }
    if importlib.util.find_spec("triton") is not None:
        triton: Any = importlib.import_module("triton")
        facts["triton"] = triton.__version__
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["memory"] = properties.total_memory
        facts["processors"] = properties.multi_processor_count
        facts["capability"] = list(torch.cuda.get_device_capability(device))
        facts["cuda"], facts["hip"] = torch.version.cuda, getattr(torch.version, "hip", None)
    return facts


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dgc.benchmark",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count, share = _positive(int), _positive(float)
    add = parser.add_argument
    add("--device", metavar="NAME", default="cuda", help="cuda (the default), cuda:1, cpu")
    add("--elements", type=count, default=25_600_000, metavar="N", help="25600000, as of ResNet-50")
    add("--tensors", type=count, default=16, metavar="N", help="that share the elements (16)")
    add("--ratio", type=share, default=0.001, metavar="SHARE", help="that is sent (0.001)")
    add("--values", choices=("fp32", "fp16", "bf16", "int8", "sign"), default="fp16", help="fp16")
    add("--steps", type=count, default=50, metavar="N", help="measured of each (50)")
    add("--warmup", type=count, default=20, metavar="N", help="made before (20)")
    add("--json", default="dgc-benchmark.json", metavar="FILE", help="dgc-benchmark.json")
    return parser


def _device(name: str) -> Optional[torch.device]:
    """Or None, and a line that says why."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        print(f"dgc.benchmark: --device {name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    if device.type not in ("cpu", "cuda"):
        print(f"dgc.benchmark: --device {name}: use cuda or cpu", file=sys.stderr)
        return None
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            f"dgc.benchmark: PyTorch {torch.__version__} finds no GPU. What can be measured without "
            "one:\n  python -m dgc.benchmark --device cpu --elements 1000000",
            file=sys.stderr,
        )
        return None
    return device


def _table(rows: List[Dict[str, Any]]) -> str:
    floor = rows[0]["median_ms"]
    lines = [
        f"{'':18} {'median ms':>10} {'fastest ms':>11} {'of the bare update':>19} {'libdgc?':>8}"
    ]
    for row in rows:
        same = {True: "same", False: "DIFFERS", None: ""}[row["same_as_libdgc"]]
        lines.append(
            f"{row['name']:18} {row['median_ms']:10.3f} {row['fastest_ms']:11.3f} "
            f"{row['median_ms'] / floor:18.2f}x {same:>8}"
        )
    return "\n".join(lines)


def main(words: Optional[List[str]] = None) -> int:
    parser = _parser()
    given = parser.parse_args(words)
    if given.ratio > 1.0:
        parser.error(f"--ratio {given.ratio} is above 1")
    if given.tensors > given.elements:
        parser.error(f"--tensors {given.tensors}: there are only {given.elements} elements")
    device = _device(given.device)
    if device is None:
        return 2
    machine = _machine(device)
    print(f"dgc {_core.__version__}, PyTorch {torch.__version__}, {machine.get('gpu', 'CPU')}")
    print(
        f"{given.elements:,} elements in {given.tensors} tensors, ratio {given.ratio:g}, "
        f"{given.values}; {given.steps} steps of each",
        flush=True,
    )
    bucket, sizes = Bucket(given, device), {"message": 0}
    ways, without = _ways(device)
    rows: List[Dict[str, Any]] = []
    works = [("bare update", "", _bare_update(bucket)), ("torch.topk", "", _topk(bucket))]
    wrong: List[str] = []
    for name, path in ways:
        found = _differences(bucket, path, given) if path != "core" else []
        wrong += found
        works.append((name, path, _step(bucket, path, sizes)))
    for name, path, work in works:
        times = sorted(_times(bucket, work, given))
        same = None
        if path not in ("", "core"):
            same = not any(line.startswith(f"{path}:") for line in wrong)
        rows.append(
            {
                "name": name,
                "median_ms": times[len(times) // 2],
                "fastest_ms": times[0],
                "slowest_ms": times[-1],
                "same_as_libdgc": same,
            }
        )
    print(_table(rows))
    for line in [*without, *wrong]:
        print(line)
    print(f"a message has {sizes['message']:,} bytes")
    asked = {name: value for name, value in vars(given).items() if name != "json"}
    report: Dict[str, Any] = {"asked": asked, "machine": machine, "rows": rows}
    report.update(differences=wrong, message_bytes=sizes["message"])
    with open(given.json, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    print(f"wrote {os.path.abspath(given.json)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
