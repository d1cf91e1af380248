"""The same steps as libdgc's in torch operations, for tensors on any device.

Correcting, accumulating and selecting happen on the device; only the entries that are sent go
through the host, where libdgc encodes and decodes them, so that the bytes are the same.
"""

import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _core
from ._residuals import Given, Part, Residuals, Setting


class _Undo(NamedTuple):
    indices: Optional[torch.Tensor]  # None: all
    velocity: Optional[torch.Tensor]
    residual: torch.Tensor


# Smallest normal number of 32 bits.
_LEAST_VELOCITY = torch.finfo(torch.float32).tiny


class TorchResiduals(Residuals):
    """u and v as tensors beside their parameters."""

    def __init__(self, setting: Setting, devices: Sequence[torch.device]) -> None:
        super().__init__(setting)
        setting.session([])  # for its checks of the options; there are no tensors in it
        self._options, self._rank, self._workers = setting.options, setting.rank, setting.workers
        self._v = [torch.zeros(s.elements, device=d) for s, d in zip(setting.specs, devices)]
        self._u = [torch.zeros_like(v) for v in self._v] if setting.options.has_velocity else None
        self._undo: Dict[int, _Undo] = {}
        self._kept: Dict[int, _Undo] = (
            {}
        )  # u and v of tensors without gradient here, before the step
        # Tensor, positions and values that go into v with the commit: global momentum.
        self._momentum: List[Tuple[int, torch.Tensor, torch.Tensor]] = []
        self._sent = [0] * len(setting.specs)
        self.step = 0
        self.clip_factor = 1.0

    def sent(self) -> List[int]:
        return list(self._sent)

    def norm(self, parts: Sequence[Part]) -> float:
        # One transfer for each device, not for each tensor.
        sums: Dict[torch.device, torch.Tensor] = {}
        for part in parts:
            square = part.values.double().square().sum()
            sums[square.device] = sums[square.device] + square if square.device in sums else square
        return math.sqrt(sum(s.item() for s in sums.values()))

    def _scale(self, parts: Sequence[Part], scale: float, norm: Optional[float]) -> float:
        scale /= self._workers
        self.clip_factor = 1.0
        if self._options.clip_norm > 0.0:
            whole = self.norm(parts) if norm is None else norm
            if not math.isfinite(whole):
                # These gradients are finite: others that the norm is of are not.
                _core.fail(
                    "nonfinite_gradient",
                    "compress",
                    "norm",
                    f"the norm of all gradients is {whole} at step {self.step}, rank {self._rank}",
                    "nothing was accumulated",
                )
            scaled = whole * abs(scale)
            local = self._options.clip_norm / math.sqrt(self._workers)
            if scaled > local:
                self.clip_factor = local / scaled
        return scale * self.clip_factor

    def _check_finite(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if torch.isfinite(part.values).all():
                continue
            index = int(torch.isfinite(part.values).logical_not().nonzero()[0])
            _core.fail(
                "nonfinite_gradient",
                "compress",
                f"'{self.specs[part.tensor].name}'",
                f"{float(part.values[index])} at index {index}, "
                f"step {self.step}, rank {self._rank}",
                "nothing was accumulated; look at the loss and the learning rate",
            )

    def _refuse_second(self, tensor: int) -> None:
        if tensor in self._undo:
            _core.fail(
                "wrong_order",
                "compress",
                f"'{self.specs[tensor].name}'",
                "was already compressed in this step",
            )

    def _keep(self, tensor: int) -> None:
        """u and v of a tensor without gradient on this rank: perhaps no rank has one."""
        u = self._u[tensor].clone() if self._u is not None else None
        self._kept[tensor] = _Undo(None, u, self._v[tensor].clone())

    def _check_residual(self, tensor: int, values: torch.Tensor) -> None:
        if torch.isfinite(values).all():
            return
        _core.fail(
            "nonfinite_residual",
            "compress",
            f"'{self.specs[tensor].name}'",
            f"the residual overflowed, step {self.step}, rank {self._rank}",
            "go back to a checkpoint",
        )

    def _accumulate(self, part: Part, scale: float) -> None:
        g, v, m = part.values * scale, self._v[part.tensor], self._options.momentum
        if self._u is None and self._options.decay != 1.0:
            v.mul_(self._options.decay).add_(g)
            # As libdgc, and for the same reason as with velocities.
            v.masked_fill_(~(v.abs() >= _LEAST_VELOCITY), 0.0)
            return
        if self._u is None:
            v.add_(g)
            return
        u = self._u[part.tensor]
        if self._options.nesterov:
            u.add_(g).mul_(m)
            v.add_(u).add_(g)
        else:
            u.mul_(m).add_(g)
            v.add_(u)
        # As libdgc: a velocity that has decayed below the normal range is dropped, after v had it.
        u.masked_fill_(~(u.abs() >= _LEAST_VELOCITY), 0.0)

    def _ahead(self, factor: float) -> float:
        """m times the factor of gradients, rounded as libdgc does."""
        m, scale = torch.tensor([self._options.feedback, factor], dtype=torch.float32)
        return float(m * scale)

    def _select(self, tensor: int) -> Optional[torch.Tensor]:
        """Positions of the k largest, ties to the lower one; None for all."""
        v, k = self._v[tensor], self.entries(tensor, self.step)
        if k == v.numel():
            return None
        magnitudes = v.abs()
        threshold = torch.topk(magnitudes, k, sorted=True).values[-1]
        above = (magnitudes > threshold).nonzero().flatten()
        equal = (magnitudes == threshold).nonzero().flatten()[: k - above.numel()]
        chosen: torch.Tensor = torch.cat([above, equal]).sort().values
        nonzero: torch.Tensor = chosen[v[chosen].to(torch.bool)]  # zeros are not sent
        return nonzero

    def compress(self, given: Given, out: torch.Tensor) -> int:
        parts, notice, scale, norm = given
        for part in parts:
            self._refuse_second(part.tensor)
        self._check_finite(parts)
        factor = self._scale(parts, scale, norm)
        frames, chosen = [], []
        for part in parts:
            t = part.tensor
            if not part.present:
                self._keep(t)
            self._accumulate(part, factor)
            indices = self._select(t)
            values = (self._v[t] if indices is None else self._v[t][indices]).cpu()
            if self._options.nesterov and self._options.feedback != 0.0:
                # What is sent runs ahead of v by m·g; that much less stays behind.
                g = part.values if indices is None else part.values[indices]
                values = values + (g * self._ahead(factor)).cpu()
            self._check_residual(t, values)
            positions = None if indices is None else indices.cpu()
            decoded = torch.zeros_like(values)
            kind, coding = (
                (self._options.dense_values, "auto")
                if indices is None
                else (self._options.values, self._options.indices)
            )
            # Kept alive by `chosen` until they are encoded.
            chosen.append((t, indices, positions, values, decoded))
            if values.numel() > 0:
                frames.append(
                    (
                        t,
                        self.specs[t].elements,
                        0 if positions is None else positions.data_ptr(),
                        values.data_ptr(),
                        decoded.data_ptr(),
                        values.numel(),
                        kind,
                        coding,
                    )
                )
        schema = self._setting.schema
        size = _core.encode(
            frames, notice, self.step, schema, self._rank, out.data_ptr(), out.numel()
        )
        for t, indices, _, _, decoded in chosen:
            self._mask(t, indices, decoded)
        return size

    def _mask(self, tensor: int, indices: Optional[torch.Tensor], decoded: torch.Tensor) -> None:
        """Takes what was sent out of v, and its momentum out of u. What rounds to zero was not
        sent."""
        v = self._v[tensor]
        u = self._u[tensor] if self._u is not None and self._options.masking else None
        self._sent[tensor] = int(torch.count_nonzero(decoded))
        decoded = decoded.to(v.device)
        if indices is None:
            self._undo[tensor] = _Undo(None, None, v.clone())
            v.sub_(decoded)
            return
        indices, decoded = indices[decoded != 0], decoded[decoded != 0]
        self._undo[tensor] = _Undo(indices, u[indices] if u is not None else None, v[indices])
        v[indices] -= decoded
        if u is not None:
            u[indices] = 0.0

    def add(self, parcels: _core.Parcels, parts: Sequence[Part], alpha: float) -> None:
        by_tensor = {part.tensor: part.values for part in parts}
        factors = self._factors(parcels, by_tensor, alpha) if self._options.over_senders else {}
        for rank in range(self._workers):
            for tensor, _, positions, values in parcels.entries(rank):
                target = by_tensor[tensor]
                at = torch.frombuffer(positions, dtype=torch.int64).to(target.device)
                added = torch.frombuffer(values, dtype=torch.float32)
                if tensor in factors:
                    added = added.to(target.device) * factors[tensor][at]
                else:
                    added = added.mul_(alpha).to(target.device)
                target.index_add_(0, at, added)

    def _factors(
        self, parcels: _core.Parcels, by_tensor: Dict[int, torch.Tensor], alpha: float
    ) -> Dict[int, torch.Tensor]:
        """Of each element of what was not sent whole: alpha times all ranks over those that sent it.
        In the order of operations that libdgc has."""
        whole = self._whole()
        counts: Dict[int, torch.Tensor] = {}
        for rank in range(self._workers):
            for tensor, _, positions, values in parcels.entries(rank):
                if whole[tensor]:
                    continue
                target = by_tensor[tensor]
                if tensor not in counts:
                    counts[tensor] = torch.zeros_like(target)
                sent = (torch.frombuffer(values, dtype=torch.float32) != 0).to(target)
                at = torch.frombuffer(positions, dtype=torch.int64).to(target.device)
                counts[tensor].index_add_(0, at, sent)
        shares = {
            t: torch.full_like(n, self._workers) / n.clamp(min=1.0) for t, n in counts.items()
        }
        return {t: share * alpha for t, share in shares.items()}

    def _put_back(self, tensor: int, undo: _Undo) -> None:
        where = slice(None) if undo.indices is None else undo.indices
        self._v[tensor][where] = undo.residual
        if undo.velocity is not None and self._u is not None:
            self._u[tensor][where] = undo.velocity

    def feed_back(self, parcels: _core.Parcels) -> None:
        if self._options.feedback == 0.0:
            return
        m = torch.tensor(self._options.feedback, dtype=torch.float32)
        share = float(m / self._workers)
        for rank in range(self._workers):
            for tensor, _, positions, values in parcels.entries(rank):
                added = torch.frombuffer(values, dtype=torch.float32) * share
                self._momentum.append(
                    (tensor, torch.frombuffer(positions, dtype=torch.int64), added)
                )

    def commit(self, frozen: Sequence[int]) -> None:
        for tensor, positions, added in self._momentum:
            v = self._v[tensor]
            v.index_add_(0, positions.to(v.device), added.to(v.device))
        self._momentum.clear()
        for tensor in frozen:
            if tensor in self._kept:
                self._put_back(tensor, self._kept[tensor])
        self._undo.clear()
        self._kept.clear()
        self.step += 1

    def restore(self) -> None:
        self._momentum.clear()
        for undone in (self._undo, self._kept):
            for tensor, undo in undone.items():
                self._put_back(tensor, undo)
            undone.clear()

    def part(self, name: str, tensor: int) -> Optional[torch.Tensor]:
        parts = self._u if name == "velocity" else self._v
        return parts[tensor] if parts is not None else None
