"""u and v of a worker's tensors, and how a step goes through them: by libdgc where tensors are on
the CPU."""

import abc
import ctypes
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _core
from ._options import Options
from ._parameters import Spec
from ._transport import Round


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
            owner=self.options.owner,
        )


class Part(NamedTuple):
    """A gradient in a bucket: fp32, one dimension, in the order of memory. Becomes the sum of what
    all ranks sent."""

    tensor: int
    values: torch.Tensor
    present: bool  # False: this rank has none, and the values are zero


class Given(NamedTuple):
    """What a message is made of."""

    parts: Sequence[Part]
    notice: _core.Notice
    scale: float
    norm: Optional[float]  # of the whole step; None: that of the parts


def _arrays(parts: Sequence[Part]) -> List[Tuple[int, int, int]]:
    return [(p.tensor, p.values.data_ptr(), p.values.numel()) for p in parts]


class Residuals(abc.ABC):
    """u and v, wherever they are. A step: compress, once or more, then commit or restore."""

    step: int
    clip_factor: float  # of the last compress

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.specs = setting.specs
        self._bounds: Dict[Tuple[Round, float], int] = {}

    @abc.abstractmethod
    def sent(self) -> List[int]:
        """Entries that the last step sent, by tensor."""

    def entries(self, tensor: int, step: int) -> int:
        """k of a tensor at a step."""
        spec = self.specs[tensor]
        ratio = self._setting.schedule.ratio_at(step)
        return spec.elements if spec.dense else _core.entries_at(ratio, spec.elements)

    def bound(self, one: Round, step: int) -> int:
        """Bytes that a message of a round cannot exceed at a step: the same on all ranks."""
        key = (one, self._setting.schedule.ratio_at(step))
        if key not in self._bounds:
            if len(self._bounds) >= 64:  # a ratio of its own for each step
                self._bounds.clear()
            self._bounds[key] = self._bound(one, step)
        return self._bounds[key]

    def _bound(self, one: Round, step: int) -> int:
        options, frames = self._setting.options, 0
        for tensor in one.tensors if one.kind == "message" else ():
            elements, k = self.specs[tensor].elements, self.entries(tensor, step)
            values, indices = (
                (options.dense_values, "auto")
                if k == elements
                else (options.values, options.indices)
            )
            frames += _core.frame_bound(elements, k, values, indices)
        return _core.parcel_bound(len(one.tensors), frames)

    def change_schedule(self, schedule: _core.Schedule) -> None:
        """From the next step on. All ranks do it between the same two steps."""
        self._setting = self._setting._replace(schedule=schedule)

    def check(
        self, messages: Sequence[torch.Tensor], notice: _core.Notice, parts: Sequence[Part]
    ) -> _core.Parcels:
        """All ranks' messages on the CPU, checked."""
        return _core.Parcels(
            [(message.data_ptr(), message.numel()) for message in messages],
            list(messages),
            notice,
            self.step,
            self._setting.schema,
            [(part.tensor, part.values.numel()) for part in parts],
        )

    def notice_message(self, notice: _core.Notice, out: torch.Tensor) -> int:
        """A message without frames. Returns its size."""
        setting = self._setting
        return _core.notice_message(
            notice, self.step, setting.schema, setting.rank, out.data_ptr(), out.numel()
        )

    def _whole(self) -> List[bool]:
        """By tensor: it is sent whole at this step."""
        return [self.entries(t, self.step) == s.elements for t, s in enumerate(self.specs)]

    @abc.abstractmethod
    def norm(self, parts: Sequence[Part]) -> float:
        """L2 norm of all parts together."""

    @abc.abstractmethod
    def compress(self, given: Given, out: torch.Tensor) -> int:
        """Accumulates, selects, and writes the message to `out`. Returns its size."""

    @abc.abstractmethod
    def add(self, parcels: _core.Parcels, parts: Sequence[Part], alpha: float) -> None:
        """Adds everybody's messages, in the order of the ranks."""

    @abc.abstractmethod
    def feed_back(self, parcels: _core.Parcels) -> None:
        """With global momentum, m/N of these messages, which all ranks apply, goes back into v with
        the commit."""

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
    """u and v in libdgc's memory. The only ones that owners of index ranges have."""

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

    def change_schedule(self, schedule: _core.Schedule) -> None:
        super().change_schedule(schedule)
        self._session.change_schedule(schedule)

    def sent(self) -> List[int]:
        return self._session.sent()

    def _bound(self, one: Round, step: int) -> int:
        if one.kind not in ("slice", "chosen"):
            return super()._bound(one, step)
        to, back = self._session.owner_bounds(one.tensors, step)
        return to if one.kind == "slice" else back

    def norm(self, parts: Sequence[Part]) -> float:
        return self._session.norm(_arrays(parts))

    def compress_for_owners(self, given: Given) -> List[torch.Tensor]:
        """As compress: a message for each rank."""
        parts, notice, scale, norm = given
        slices = self._session.compress_for_owners(_arrays(parts), notice, scale, norm)
        return [torch.frombuffer(one, dtype=torch.uint8) for one in slices]

    def choose(
        self, parts: Sequence[Part], slices: _core.Parcels, notice: _core.Notice
    ) -> torch.Tensor:
        """What this rank, an owner, sends to all ranks."""
        chosen = self._session.choose([part.tensor for part in parts], slices, notice)
        return torch.frombuffer(chosen, dtype=torch.uint8)

    def compress(self, given: Given, out: torch.Tensor) -> int:
        parts, notice, scale, norm = given
        return self._session.compress(
            _arrays(parts), notice, out.data_ptr(), out.numel(), scale, norm
        )

    def add(self, parcels: _core.Parcels, parts: Sequence[Part], alpha: float) -> None:
        if self._setting.options.over_senders:
            parcels.add_mean_of_senders(_arrays(parts), alpha, self._whole())
        else:
            parcels.add_to(_arrays(parts), alpha)

    def feed_back(self, parcels: _core.Parcels) -> None:
        self._session.feed_back(parcels)

    def commit(self, frozen: Sequence[int]) -> None:
        self._session.commit(list(frozen))

    def restore(self) -> None:
        self._session.restore()

    def part(self, name: str, tensor: int) -> Optional[torch.Tensor]:
        if name == "velocity" and not self._setting.options.has_velocity:
            return None
        where = self._session.velocity if name == "velocity" else self._session.residual
        address, elements = where(tensor)
        if elements == 0:
            return torch.empty(0)
        memory = (ctypes.c_float * elements).from_address(address)
        return torch.frombuffer(memory, dtype=torch.float32)
