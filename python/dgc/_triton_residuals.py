"""u and v on a GPU, and a step in fused kernels: _triton_select.py and _triton_pack.py.

The host says once what there is to do, waits once for what has been sent to its memory, and lays the
tensors' sections into a message. Everything runs on the stream that is current when compress() is
called: that of the bucket. `Device` is all that the path asks of the runtime.
"""

import struct
import ctypes
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _core
from . import _triton_pack as packing
from . import _triton_select as selecting
from ._paths import TRITON_VALUES
from ._residuals import Given, Part, Setting
from ._torch_residuals import TorchResiduals, _Undo

_BLOCK = 4096  # elements that a program has
_PART = 256
_COLUMNS = 16
_FACTS = 8
_HEAD = 8
_RAW = 1 << 31  # in a row's word of the outbox: the host codes it
_RULES = {"auto": 0, "rice": 1}


class Device:
    """What the path asks of a device and its runtime."""

    words = 32  # of a message that a program makes at once
    tile = 16384  # elements that a search looks at, at once

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def zeros(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype, device=self.device)

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, device=self.device)

    def host(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory of the host which the device can read and write, too."""
        return torch.empty(count, dtype=dtype)

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """A copy, behind what is under way; nobody waits."""
        return host.clone()

    def wait(self) -> None:
        """Until all that has been launched on the current stream is done."""

    def launch(self, kernel: Any, programs: int, *args: Any, **how: Any) -> None:
        """As many programs of a kernel, after what was launched before. One float operation is one
        rounding: no fused multiply-add."""
        if programs > 0:
            kernel[(programs,)](*args, enable_fp_fusion=False, **how)


class Gpu(Device):
    """Of CUDA, or of ROCm, which has the same names in PyTorch."""

    words, tile = 16, 1024  # what fits into registers

    def host(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, pin_memory=True)

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        pinned = host if host.is_pinned() else host.pin_memory()
        return pinned.to(self.device, non_blocking=True)

    def wait(self) -> None:
        make: Any = torch.cuda.Event
        with torch.cuda.device(self.device):
            event = make()
            event.record()
            event.synchronize()

    def launch(self, kernel: Any, programs: int, *args: Any, **how: Any) -> None:
        with torch.cuda.device(self.device):
            super().launch(kernel, programs, *args, **how)


class _Plan(NamedTuple):
    """What kernels have to know of a bucket; on the device."""

    tensors: List[int]  # of the rows
    entries: List[int]  # k
    first_entry: List[int]
    blocks: int
    parts: int
    candidates: int
    outbox: int  # bytes
    rows: torch.Tensor
    block_rows: torch.Tensor
    part_rows: torch.Tensor


def _up(count: int, to: int) -> int:
    return -(-count // to)


class TritonResiduals(TorchResiduals):
    """As TorchResiduals, for tensors of one device."""

    def __init__(
        self, setting: Setting, devices: Sequence[torch.device], device: Optional[Device] = None
    ) -> None:
        super().__init__(setting, devices)
        where = devices[0] if devices else torch.device("cpu")
        self._device = device or (Gpu if where.type == "cuda" else Device)(where)
        self._carried = self._device.zeros(4 * len(setting.specs), torch.int32)
        self._plans: Dict[Any, _Plan] = {}
        self._mailbox = self._device.host(0, torch.int32)
        self._shipped = 0  # bytes that crossed to the host with the last message

    # ---- what there is to do ---------------------------------------------------------------------

    def _plan(self, parts: Sequence[Part]) -> _Plan:
        key = tuple(
            (part.tensor, part.values.data_ptr(), self.entries(part.tensor, self.step))
            for part in parts
            if part.values.numel() > 0
        )
        if key not in self._plans:
            if len(self._plans) >= 64:  # gradients that are somewhere else at each step
                self._plans.clear()
            self._plans[key] = self._make_plan(key)
        return self._plans[key]

    def _make_plan(self, key: Sequence[Tuple[int, int, int]]) -> _Plan:
        rows: List[int] = []
        block_rows: List[int] = []
        part_rows: List[int] = []
        first_entry: List[int] = []
        entries = candidates = room = 0
        for row, (tensor, gradient, k) in enumerate(key):
            v = self._v[tensor]
            n = v.numel()
            whole = k == n
            blocks, pieces = _up(n, _BLOCK), _up(k, _PART)
            # With more candidates than that, looking through all elements is as fast.
            listed = 0 if whole else min(n, 8 * k + 16 * _BLOCK)
            velocity = self._u[tensor].data_ptr() if self._u is not None else 0
            rows += [gradient, v.data_ptr(), velocity, n, k, len(block_rows), blocks, entries]
            rows += [len(part_rows), pieces, int(whole), candidates, listed, tensor, 0, 0]
            block_rows += [row] * blocks
            part_rows += [row] * pieces
            first_entry.append(entries)
            entries += k
            candidates += listed
            room += 8 * k + 8

        def table(values: List[int], dtype: torch.dtype) -> torch.Tensor:
            return self._device.upload(torch.tensor(values, dtype=dtype))

        return _Plan(
            [tensor for tensor, _, _ in key],
            [k for _, _, k in key],
            [*first_entry, entries],
            len(block_rows),
            len(part_rows),
            candidates,
            4 * _up(_HEAD + 4 * len(key) + room, 4),
            table(rows, torch.int64),
            table(block_rows, torch.int32),
            table(part_rows, torch.int32),
        )

    # ---- a step ----------------------------------------------------------------------------------

    def compress(self, given: Given, out: torch.Tensor) -> int:
        parts, notice, scale, norm = given
        for part in parts:
            self._refuse_second(part.tensor)
        if self._options.clip_norm > 0.0:
            norm = self.norm(parts) if norm is None else norm
            if not norm < float("inf"):
                self._check_finite(parts)  # names the place
        factor = self._scale(parts, scale, norm)
        for part in parts:
            if not part.present:
                self._keep(part.tensor)
        plan = self._plan(parts)
        log = self._launch(plan, factor)
        self._device.wait()
        return self._message(plan, log, parts, notice, out)

    def _launch(self, plan: _Plan, factor: float) -> Tuple[torch.Tensor, ...]:
        """Everything, from gradients to the mailbox. Returns positions of the selected entries, and
        what v and u were there."""
        options, device, go = self._options, self._device, self._device.launch
        rows, entries = len(plan.tensors), plan.first_entry[-1]
        masking = self._u is not None and options.masking
        ahead = options.nesterov and options.feedback != 0.0
        rule = 0 if self._u is None else 2 if options.nesterov else 1
        types = {
            "SPARSE": TRITON_VALUES.index(options.values),
            "DENSE": TRITON_VALUES.index(options.dense_values),
        }

        sizes = [plan.blocks] * 5 + [_up(plan.blocks * _BLOCK, 2), plan.candidates]
        sizes += [entries, entries, plan.parts * _FACTS, plan.outbox // 4]
        ints = self._arrays(sizes, torch.int32)
        bad, counts, bases, greater, equal, lists, magnitudes, codes, places, facts, outbox = ints
        lists = lists.view(torch.int16)
        values, decoded = self._arrays([entries] * 2, torch.float32)
        found, begins = self._arrays([rows * _COLUMNS, plan.parts], torch.int64)
        status = device.zeros(2, torch.int32)
        positions = device.empty(entries, torch.int32)
        old_v = device.empty(entries, torch.float32)
        old_u = device.empty(entries if masking else 0, torch.float32)
        if self._mailbox.numel() < outbox.numel():
            self._mailbox = device.host(outbox.numel(), torch.int32)

        of_blocks = (plan.rows, plan.block_rows)
        lists_of = (plan.rows, found, plan.block_rows, status, counts)
        go(selecting.check, plan.blocks, *of_blocks, bad, BLOCK=_BLOCK, num_warps=8)
        go(selecting.verdict, 1, bad, plan.blocks, status, TILE=1024)
        go(
            selecting.accumulate, plan.blocks, *of_blocks, self._carried, status, counts, lists,
            factor, options.momentum, RULE=rule, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
        go(selecting.add_up, rows, plan.rows, found, status, counts, bases, TILE=1024)
        go(
            selecting.gather, plan.blocks, *lists_of, bases, lists, magnitudes,
            BLOCK=_BLOCK, TILE=_PART,
        )  # fmt: skip
        go(
            selecting.search, rows, plan.rows, found, self._carried, status, magnitudes,
            TILE=device.tile, num_warps=8,
        )  # fmt: skip
        go(
            selecting.count, plan.blocks, *lists_of, lists, greater, equal,
            BLOCK=_BLOCK, TILE=_PART,
        )  # fmt: skip
        go(selecting.place, rows, plan.rows, found, status, greater, equal, bases, TILE=1024)
        go(
            selecting.write, plan.blocks, *lists_of, lists, bases, equal, positions, values, old_v,
            old_u, self._ahead(factor) if ahead else 0.0, AHEAD=ahead, MASKING=masking,
            BLOCK=_BLOCK, TILE=_PART, num_warps=8,
        )  # fmt: skip
        coding = (positions, values, codes, decoded, places, facts)
        of_parts = (plan.rows, found, plan.part_rows, status)
        go(packing.encode, plan.parts, *of_parts, *coding, **types)
        go(
            packing.plan, rows, plan.rows, found, status, facts, begins, **types,
            RULE=_RULES.get(options.indices, 2), TILE=256,
        )  # fmt: skip
        go(packing.layout, 1, found, status, outbox, rows, TILE=256)
        go(
            packing.pack, plan.parts, *of_parts, *coding, begins, old_v, outbox.view(torch.uint8),
            **types, MASKING=masking, WORDS=device.words,
        )  # fmt: skip
        go(packing.ship, _up(outbox.numel(), 4096), outbox, self._mailbox, TILE=4096)
        return positions, old_v, old_u

    def _arrays(self, sizes: Sequence[int], dtype: torch.dtype) -> Sequence[torch.Tensor]:
        """In one piece of memory. Each begins where 256 bytes do: Triton compiles a kernel anew for
        other alignments."""
        room = [64 * _up(size, 64) for size in sizes]
        return torch.split(self._device.empty(sum(room), dtype), room)

    def _message(
        self,
        plan: _Plan,
        log: Tuple[torch.Tensor, ...],
        parts: Sequence[Part],
        notice: _core.Notice,
        out: torch.Tensor,
    ) -> int:
        """The message of what is in the mailbox."""
        options, mailbox = self._options, self._mailbox.data_ptr()
        total, wrong = struct.unpack("<iI", ctypes.string_at(mailbox, _HEAD))
        self._shipped = total
        if wrong != 0:
            self._fail(wrong, parts)
        rows = len(plan.tensors)
        says = struct.unpack(f"<{rows}I", ctypes.string_at(mailbox + _HEAD, 4 * rows))
        at = mailbox + _HEAD + 4 * rows
        frames, raw = [], []
        for part in parts:
            self._sent[part.tensor] = 0
        for row, (tensor, k, word) in enumerate(zip(plan.tensors, plan.entries, says)):
            n, begin = self.specs[tensor].elements, plan.first_entry[row]
            whole = k == n
            kind = options.dense_values if whole else options.values
            coded, count = word < _RAW, k if word < _RAW else word - _RAW
            if coded:
                coding = "dense" if whole else "rice"
                size = _core.value_bytes(kind, count) + word
                decoded = None
            else:
                coding = "auto" if whole else options.indices
                size = (4 if whole else 8) * count
                decoded = self._device.host(count, torch.float32)
                raw.append((tensor, begin, decoded))
            here = slice(begin, begin + count)
            old_u = log[2][here] if log[2].numel() > 0 and not whole else None
            self._undo[tensor] = _Undo(None if whole else log[0][here], old_u, log[1][here])
            if count > 0:
                address = 0 if decoded is None else decoded.data_ptr()
                frames.append((tensor, n, count, kind, coding, at, size, address))
            at += size
        size, sent = _core.pack(
            frames, notice, self.step, self._setting.schema, self._rank, out.data_ptr(), out.numel()
        )
        for frame, count in zip(frames, sent):
            self._sent[frame[0]] = count
        for tensor, begin, decoded in raw:
            self._take_out(tensor, decoded)
        return size

    def _take_out(self, tensor: int, decoded: torch.Tensor) -> None:
        """What the host has coded leaves v, and its momentum u. What rounds to zero was not sent."""
        undo, there = self._undo[tensor], self._device.upload(decoded)
        left = undo.residual - there
        if undo.indices is None:
            self._v[tensor].copy_(left)
            return
        where = undo.indices.long()
        self._v[tensor].index_copy_(0, where, left)
        if undo.velocity is not None and self._u is not None:
            kept = undo.velocity.masked_fill(there != 0, 0.0)
            self._u[tensor].index_copy_(0, where, kept)

    def _put_back(self, tensor: int, undo: _Undo) -> None:
        if undo.indices is not None:
            undo = undo._replace(indices=undo.indices.long())
        super()._put_back(tensor, undo)

    def _fail(self, wrong: int, parts: Sequence[Part]) -> None:
        """Says what the kernels have found. Takes its time."""
        if wrong == 1:
            self._check_finite(parts)
        for part in parts:
            self._check_residual(part.tensor, self._v[part.tensor])
        _core.fail(
            "nonfinite_residual",
            "compress",
            "gradients",
            f"overflow beside the momentum, step {self.step}, rank {self._rank}",
            "go back to a checkpoint",
        )


def bare_update(g: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> Callable[[], None]:
    """u and v in one pass, and nothing selected: what everything is compared with."""
    device, n = Gpu(g.device), g.numel()
    blocks = _up(n, _BLOCK)
    row = [g.data_ptr(), v.data_ptr(), u.data_ptr(), n, n, 0, blocks, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    rows = device.upload(torch.tensor(row, dtype=torch.int64))
    block_rows, status = device.zeros(blocks, torch.int32), device.zeros(2, torch.int32)

    def update() -> None:
        device.launch(
            selecting.accumulate, blocks, rows, block_rows, status, status, status, status,
            1.0, 0.9, RULE=1, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip

    return update
