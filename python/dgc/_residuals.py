"""u and v of a worker's tensors, and how a step goes through them: by libdgc where tensors are on the CPU."""

import ctypes
from typing import List, NamedTuple, Optional, Sequence

import torch

from . import _core


class Spec(NamedTuple):
    """A tensor as the compressor sees it."""

    name: str
    shape: List[int]
    dense: bool
    elements: int


class Options(NamedTuple):
    """What the compressor is made with; names as in C++'s CompressOptions."""

    schedule: _core.Schedule
    momentum: float
    nesterov: bool
    masking: bool
    clip_norm: float
    selection: str
    values: str
    dense_values: str
    indices: str
    schema: int
    threads: int


class Part(NamedTuple):
    """A gradient in a bucket: fp32, one dimension, in the order of memory. Becomes the sum of what all ranks sent."""

    tensor: int
    values: torch.Tensor
    present: bool  # False: this rank has none, and the values are zero


def _arrays(parts: Sequence[Part]) -> "list[tuple[int, int, int]]":
    return [(p.tensor, p.values.data_ptr(), p.values.numel()) for p in parts]


class CoreResiduals:
    """u and v in libdgc's memory."""

    def __init__(self, specs: Sequence[Spec], rank: int, workers: int, options: Options) -> None:
        self._session = _core.Session(tensors=[(s.name, s.shape, s.dense) for s in specs], rank=rank, workers=workers, **options._asdict())
        self._schema = options.schema
        self._has_velocity = options.momentum != 0.0

    @property
    def step(self) -> int:
        return self._session.step

    @step.setter
    def step(self, step: int) -> None:
        self._session.step = step

    @property
    def clip_factor(self) -> float:
        return self._session.clip_factor

    def sent(self) -> List[int]:
        return self._session.sent()

    def bound(self, tensors: Sequence[int]) -> int:
        return self._session.bound(list(tensors))

    def norm(self, parts: Sequence[Part]) -> float:
        return self._session.norm(_arrays(parts))

    def compress(self, parts: Sequence[Part], out: int, room: int, scale: float, norm: Optional[float]) -> int:
        return self._session.compress(_arrays(parts), [p.tensor for p in parts if not p.present], out, room, scale, norm)

    def add_messages(self, messages: "Sequence[tuple[int, int]]", parts: Sequence[Part], alpha: float) -> None:
        _core.add_messages(list(messages), _arrays(parts), alpha, self.step, self._schema)

    def commit(self, frozen: Sequence[int]) -> None:
        self._session.commit(list(frozen))

    def restore(self) -> None:
        self._session.restore()

    def velocity(self, tensor: int) -> Optional[torch.Tensor]:
        """u, not a copy; None without momentum."""
        return self._view(*self._session.velocity(tensor)) if self._has_velocity else None

    def residual(self, tensor: int) -> torch.Tensor:
        """v, not a copy."""
        return self._view(*self._session.residual(tensor))

    @staticmethod
    def _view(address: int, elements: int) -> torch.Tensor:
        if elements == 0:
            return torch.empty(0)
        return torch.frombuffer((ctypes.c_float * elements).from_address(address), dtype=torch.float32)
