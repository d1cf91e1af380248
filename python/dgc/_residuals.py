"""u and v of a worker's tensors, and how a step goes through them: by libdgc where tensors are on
the CPU."""

import abc
import ctypes
from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _core
from ._options import Options
from ._parameters import Spec


class Setting(NamedTuple):
    """What residuals are made for."""

    specs: Sequence[Spec]
    rank: int
    workers: int
    schedule: _core.Schedule
    options: Options
    schema: int

    def session(self, specs: Sequence[Spec]) -> _core.Session:
        """libdgc's compressor of these tensors. Throws Error for options that it cannot serve."""
        return _core.Session(
            tensors=[(s.name, s.shape, s.dense) for s in specs],
            rank=self.rank,
            workers=self.workers,
            schedule=self.schedule,
            schema=self.schema,
            options=self.options.of_compressor(),
        )


class Part(NamedTuple):
    """A gradient in a bucket: fp32, one dimension, in the order of memory. Becomes the sum of what
    all ranks sent."""

    tensor: int
    values: torch.Tensor
    present: bool  # False: this rank has none, and the values are zero


def _arrays(parts: Sequence[Part]) -> List[Tuple[int, int, int]]:
    return [(p.tensor, p.values.data_ptr(), p.values.numel()) for p in parts]


class Residuals(abc.ABC):
    """u and v, wherever they are. A step: compress, once or more, then commit or restore."""

    step: int
    clip_factor: float  # of the last compress

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.specs = setting.specs

    @abc.abstractmethod
    def sent(self) -> List[int]:
        """Entries that the last step sent, by tensor."""

    @abc.abstractmethod
    def bound(self, tensors: Sequence[int]) -> int:
        """Bytes that a message of these tensors cannot exceed now: the same on all ranks."""

    @abc.abstractmethod
    def norm(self, parts: Sequence[Part]) -> float:
        """L2 norm of all parts together."""

    @abc.abstractmethod
    def compress(
        self, parts: Sequence[Part], out: int, room: int, scale: float, norm: Optional[float]
    ) -> int:
        """Accumulates, selects, and writes the message to address `out`. Returns its size."""

    @abc.abstractmethod
    def add_messages(
        self, messages: Sequence[Tuple[int, int]], parts: Sequence[Part], alpha: float
    ) -> None:
        """Adds everybody's messages, each an address and a size, in the order of the ranks."""

    @abc.abstractmethod
    def commit(self, frozen: Sequence[int]) -> None:
        """The step was delivered. No rank had a gradient of `frozen`: they are as before."""

    @abc.abstractmethod
    def restore(self) -> None:
        """The step was not delivered: what was selected goes back."""

    @abc.abstractmethod
    def part(self, name: str, tensor: int) -> Optional[torch.Tensor]:
        """u ("velocity") or v ("residual"), not a copy; None for u without momentum."""


class CoreResiduals(Residuals):
    """u and v in libdgc's memory."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._session = setting.session(setting.specs)

    @property
    def step(self) -> int:
        return self._session.step

    @step.setter
    def step(self, step: int) -> None:
        self._session.step = step

    @property
    def clip_factor(self) -> float:  # type: ignore[override]
        return self._session.clip_factor

    def sent(self) -> List[int]:
        return self._session.sent()

    def bound(self, tensors: Sequence[int]) -> int:
        return self._session.bound(list(tensors))

    def norm(self, parts: Sequence[Part]) -> float:
        return self._session.norm(_arrays(parts))

    def compress(
        self, parts: Sequence[Part], out: int, room: int, scale: float, norm: Optional[float]
    ) -> int:
        absent = [p.tensor for p in parts if not p.present]
        return self._session.compress(_arrays(parts), absent, out, room, scale, norm)

    def add_messages(
        self, messages: Sequence[Tuple[int, int]], parts: Sequence[Part], alpha: float
    ) -> None:
        _core.add_messages(list(messages), _arrays(parts), alpha, self.step, self._setting.schema)

    def commit(self, frozen: Sequence[int]) -> None:
        self._session.commit(list(frozen))

    def restore(self) -> None:
        self._session.restore()

    def part(self, name: str, tensor: int) -> Optional[torch.Tensor]:
        if name == "velocity" and self._setting.options.momentum == 0.0:
            return None
        where = self._session.velocity if name == "velocity" else self._session.residual
        address, elements = where(tensor)
        if elements == 0:
            return torch.empty(0)
        memory = (ctypes.c_float * elements).from_address(address)
        return torch.frombuffer(memory, dtype=torch.float32)
