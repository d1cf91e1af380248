"""Gradients that are hard to select from, and the comparison with libdgc, for selftest.py: the same
sequences as in tests/compress/test_selection.cpp.

Two residuals go through the same steps: libdgc's on the CPU, and those that are tested. After each
step the messages have to be the same bytes, and u and v the same bits.
"""

import ctypes
import importlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from . import _core
from ._options import Options
from ._parameters import Spec
from ._residuals import CoreResiduals, Given, Part, Residuals, Setting

Make = Callable[[Setting, Sequence[torch.device]], Residuals]


def quicken_interpreter() -> None:
    """Triton's interpreter prepares the language anew for each call of a function inside a kernel,
    which takes most of its time. For the package's functions that was done when the kernel began,
    and for Triton's own it stays after the first call."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    plain, prepared = interpreter.InterpretedFunction.__call__, {""}

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.fn.__module__
        if module.startswith("dgc.") or module in prepared:
            return self.rewrite()(*args, **kwargs)
        prepared.add(module)
        return plain(self, *args, **kwargs)

    if not getattr(plain, "quick", False):
        call.quick = True  # type: ignore[attr-defined]
        interpreter.InterpretedFunction.__call__ = call


class Counts:
    """What was compared."""

    def __init__(self) -> None:
        self.cases = self.steps = self.refused = self.undone = 0
        self.bytes = self.entries = self.values = 0
        self.sizes: Set[int] = set()
        self.sequences: Set[str] = set()
        self.differences: List[str] = []

    def __str__(self) -> str:
        return (
            f"{self.cases} cases, {len(self.sequences)} sequences, {len(self.sizes)} sizes "
            f"({min(self.sizes):,} to {max(self.sizes):,}), {self.steps:,} steps "
            f"({self.undone} undone, {self.refused} refused); compared: {self.entries:,} entries "
            f"sent, {self.bytes:,} bytes of messages, {self.values:,} values of u and v; "
            f"{len(self.differences)} differences"
        )


class Case(NamedTuple):
    sequence: str
    sizes: Tuple[int, ...]  # of the tensors of one bucket
    options: Dict[str, Any]
    steps: int = 14
    dense: Tuple[int, ...] = ()  # which of the tensors are sent whole
    ratios: str = "0.25,0.05,0.01:3"  # a schedule, with the steps of a stage


def _gaussian(chance: torch.Generator, n: int) -> torch.Tensor:
    return torch.randn(n, generator=chance)


def _signs(chance: torch.Generator, n: int) -> torch.Tensor:
    return torch.randint(0, 2, (n,), generator=chance).float() - 0.5


def _scale_jumps(step: int, n: int, chance: torch.Generator) -> torch.Tensor:
    return _gaussian(chance, n) * {2: 1e6, 3: 1e-6}.get(step % 4, 1.0)


def _outlier(step: int, n: int, chance: torch.Generator) -> torch.Tensor:
    g = _gaussian(chance, n)
    if step == 3 and n > 0:
        g[n // 2] = 1e30
    return g


def _rows(step: int, n: int, chance: torch.Generator) -> torch.Tensor:
    active = torch.arange(n) // 64 % 4 == step % 4
    return torch.where(active, _gaussian(chance, n), torch.zeros(n))


def _block_ends(step: int, n: int, chance: torch.Generator) -> torch.Tensor:
    """Large where blocks of 256 and of 4096 begin and end."""
    g = _gaussian(chance, n) * 0.01
    at = torch.arange(n)
    edge = ((at + step % 2) % 256 == 0) | ((at + 1) % 4096 < 2)
    return torch.where(edge, torch.full((n,), 1.0), g)


def _listed_ties(step: int, n: int, chance: torch.Generator) -> torch.Tensor:
    """The same each time, and more of it equal than are sent: the threshold carried is right, and
    does not tell the equal ones apart."""
    g = torch.full((n,), 0.01)
    g[:: 3 + step % 2] = 1.0
    return g


def _decaying(step: int, n: int, chance: torch.Generator) -> torch.Tensor:
    """u falls below the normal range."""
    return _gaussian(chance, n) * 2e-37 if step == 0 else torch.zeros(n)


def _nonfinite(step: int, n: int, chance: torch.Generator) -> torch.Tensor:
    g = _gaussian(chance, n)
    if n > 0 and step % 4 == 1:
        g[(n - 1) * (step % 3) // 2] = (float("nan"), float("inf"), -float("inf"))[step // 4 % 3]
    return g


def _growing(step: int, n: int, chance: torch.Generator) -> torch.Tensor:
    """Thresholds of the step before are too low, then too high."""
    return _gaussian(chance, n) * (4.0**step if step < 8 else 4.0 ** (15 - step))


SEQUENCES: Dict[str, Callable[[int, int, torch.Generator], torch.Tensor]] = {
    "constant": lambda step, n, chance: torch.ones(n),
    "all_ties": lambda step, n, chance: _signs(chance, n),
    "zeros": lambda step, n, chance: torch.zeros(n),
    "scale_jumps": _scale_jumps,
    "denormals": lambda step, n, chance: _gaussian(chance, n) * 1e-42,
    "huge_outlier": _outlier,
    "alternating_rows": _rows,
    "gaussian": lambda step, n, chance: _gaussian(chance, n),
    "ascending": lambda step, n, chance: torch.arange(1.0, n + 1.0),
    "block_ends": _block_ends,
    "listed_ties": _listed_ties,
    "decaying": _decaying,
    "nonfinite": _nonfinite,
    "growing": _growing,
}


def _setting(case: Case) -> Setting:
    specs = [Spec(f"tensor {i}", [n], i in case.dense, n) for i, n in enumerate(case.sizes)]
    options = Options.read(case.options)
    text, _, each = case.ratios.partition(":")
    ratios = [float(ratio) for ratio in text.split(",")]
    schedule = _core.Schedule(ratios[0])
    if each:
        schedule = _core.Schedule.stages(ratios[:-1], int(each), ratios[-1])
    return Setting(specs, 0, 1, schedule, options, 7)


class _Side:
    """One of the two, and what it has done in a step."""

    def __init__(self, residuals: Residuals, device: torch.device) -> None:
        self.residuals, self._device = residuals, device
        self.message = b""
        self.error: Optional[_core.Error] = None
        self._parts: List[Part] = []
        self._notice = _core.Notice(0, [])

    def compress(self, gradients: Sequence[torch.Tensor], absent: int, norm: float) -> None:
        # One buffer, as of a bucket, in which no tensor begins where memory is aligned.
        flat = torch.cat([torch.zeros(1), *gradients]).to(self._device)
        sizes = [gradient.numel() for gradient in gradients]
        pieces = torch.split(flat[1:], sizes)
        self._parts = [Part(i, piece, i != absent) for i, piece in enumerate(pieces)]
        self._notice = _core.Notice(0, [part.present for part in self._parts])
        room = torch.zeros(1000 + 16 * sum(sizes) + 64 * len(sizes), dtype=torch.uint8)
        given = Given(self._parts, self._notice, 0.3, norm)
        self.message, self.error = b"", None
        try:
            size = self.residuals.compress(given, room)
        except _core.Error as error:
            self.error = error
        else:
            self.message = ctypes.string_at(room.data_ptr(), size)

    def end(self, undo: bool, frozen: List[int]) -> None:
        if undo:
            self.residuals.restore()
            return
        message = torch.frombuffer(bytearray(self.message), dtype=torch.uint8)
        parcels = self.residuals.check([message], self._notice, self._parts)
        for part in self._parts:
            part.values.zero_()
        self.residuals.add(parcels, self._parts, 0.7)
        self.residuals.feed_back(parcels)
        self.residuals.commit(frozen)

    def values(self) -> Iterator[Tuple[str, torch.Tensor]]:
        for tensor, part in enumerate(self._parts):
            for name in ("velocity", "residual"):
                values = self.residuals.part(name, tensor)
                if values is not None:
                    yield f"{name} of tensor {tensor}", values.detach().cpu()
            yield f"sum of tensor {tensor}", part.values.cpu()


def _differing(ours: _Side, theirs: _Side, counts: Counts) -> Iterator[str]:
    for (name, one), (_, other) in zip(ours.values(), theirs.values()):
        counts.values += other.numel()
        differ = one.view(torch.int32) != other.view(torch.int32)
        if bool(differ.any()):
            at = int(differ.nonzero()[0])
            yield f"{name} at {at}: {float(one[at])!r}, not {float(other[at])!r}"


def compare(case: Case, make: Make, device: torch.device, counts: Counts) -> None:
    """Adds what was compared and what differs."""
    setting = _setting(case)
    ours = _Side(make(setting, [device] * len(case.sizes)), device)
    theirs = _Side(CoreResiduals(setting), torch.device("cpu"))
    chance = torch.Generator().manual_seed(42)
    counts.cases += 1
    counts.sizes.update(case.sizes)
    counts.sequences.add(case.sequence)
    for step in range(case.steps):
        where = f"{case.sequence}, {list(case.sizes)}, {case.options}, step {step}: "
        gradients = [SEQUENCES[case.sequence](step, n, chance) for n in case.sizes]
        flat = torch.cat([torch.zeros(1), *gradients])
        norm = float(flat.double().norm()) if bool(torch.isfinite(flat).all()) else None
        if norm is None:
            _refuse(where, case, ours, theirs, gradients, counts)
            continue
        absent = step % len(case.sizes) if step % 5 == 4 else -1
        for side in (ours, theirs):
            side.compress(gradients, absent, norm)
        codes = [getattr(side.error, "code", None) for side in (ours, theirs)]
        if codes[0] != codes[1]:
            counts.differences.append(f"{where}errors {codes[0]} and {codes[1]}")
            return
        if ours.message != theirs.message:
            sizes = f"{len(ours.message)} and {len(theirs.message)}"
            counts.differences.append(f"{where}messages of {sizes} bytes")
            return
        failed = codes[0] is not None
        frozen = [absent] if absent >= 0 and step % 2 == 0 else []
        if not failed:
            counts.bytes += len(theirs.message)
            counts.entries += sum(theirs.residuals.sent())
            if ours.residuals.sent() != theirs.residuals.sent():
                counts.differences.append(f"{where}another number of entries sent")
        undo = failed or step % 7 == 5
        for side in (ours, theirs):
            side.end(undo, frozen)
        counts.steps += 1
        counts.undone += undo
        found = [where + difference for difference in _differing(ours, theirs, counts)]
        counts.differences += found
        if found or failed:
            return


def _refuse(
    where: str,
    case: Case,
    ours: _Side,
    theirs: _Side,
    gradients: Sequence[torch.Tensor],
    counts: Counts,
) -> None:
    """Inf or NaN: an error that names the same place as libdgc's, and nothing has changed. (libdgc
    itself accumulates what is finite, unless norm() is asked first: it does not see this step.)"""
    counts.refused += 1
    fresh = _Side(CoreResiduals(_setting(case)), torch.device("cpu"))
    fresh.residuals.step = ours.residuals.step
    for side in (ours, fresh):
        side.compress(gradients, -1, 1.0)
    parts = [
        (getattr(side.error, "code", None), str(side.error).split("step")[0])
        for side in (ours, fresh)
    ]
    if parts[0] != parts[1]:
        counts.differences.append(f"{where}errors {parts[0]} and {parts[1]}")
    ours.residuals.restore()
    for side in (ours, theirs):
        side._parts = [Part(i, g.zero_(), True) for i, g in enumerate(gradients)]
    for difference in _differing(ours, theirs, counts):
        counts.differences.append(f"{where}after an error: {difference}")
