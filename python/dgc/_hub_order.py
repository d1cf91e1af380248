"""Which examples a member works on."""

import dataclasses
from typing import Iterator, List, Optional, Tuple

import torch

from . import _core


class Order:
    """Every example once in an epoch, in an order that seed and epoch give: that of `dgc train`."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self._seed = seed
        self._known: List[Tuple[int, torch.Tensor]] = []

    def take(self, epoch: int, first: int, count: int) -> torch.Tensor:
        """What stands at `count` positions from `first` on; behind the end of an epoch comes the
        next."""
        parts = [torch.empty(0, dtype=torch.int64)]
        while count > 0:
            part = self._of(epoch)[first : first + count]
            parts.append(part)
            epoch, first, count = epoch + 1, 0, count - len(part)
        return torch.cat(parts)

    def _of(self, epoch: int) -> torch.Tensor:
        for known, order in self._known:
            if known == epoch:
                return order
        order = torch.frombuffer(
            _core.epoch_order(self.count, self._seed, epoch), dtype=torch.int64
        )
        # Two, because what a lost member had may be done again after the next epoch has begun.
        self._known = [*self._known[-1:], (epoch, order)]
        return order


@dataclasses.dataclass(frozen=True)
class Work:
    """What a member computes next: some examples, at the parameters that the model has now.

    ::

        for work in member:
            chosen = work.indices
            loss = loss_function(model(inputs[chosen]), targets[chosen])
            loss.backward()
            member.contribute(loss)
    """

    round: int
    """Rounds that these parameters have had."""
    epoch: int
    first: int
    """Position of the first example in the epoch's order."""
    count: int
    """Number of examples."""
    inner_lr: float
    """The learning rate of local steps; 0 in a run without them."""
    step: int
    """Examples of a local step, as the hub says."""
    _order: Order = dataclasses.field(repr=False)

    @property
    def indices(self) -> torch.Tensor:
        """The numbers of the examples in the data set."""
        return self._order.take(self.epoch, self.first, self.count)

    def batches(self, size: Optional[int] = None) -> Iterator[torch.Tensor]:
        """The indices in parts of `size` (default: `step`), or fewer at the end: for local steps."""
        indices, size = self.indices, size or self.step
        for at in range(0, len(indices), size):
            yield indices[at : at + size]
