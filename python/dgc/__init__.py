"""Deep Gradient Compression for PyTorch's DistributedDataParallel.

Two lines turn a DDP script into one that sends 0.1 % of each gradient::

    state = dgc.DGCState(ddp, momentum=0.9, warmup=4 * steps_per_epoch)
    ddp.register_comm_hook(state, dgc.hook)

with ``torch.optim.SGD(ddp.parameters(), lr=0.1)``, which has no momentum of its own, or :class:`dgc.SGD` where there is weight
decay. docs/pytorch.md has the rest.
"""

from ._core import Error, Schedule, __version__, inspect_message
from ._hook import hook
from .optim import SGD
from .state import DGCState, StepStats

__all__ = ["DGCState", "Error", "SGD", "Schedule", "StepStats", "__version__", "hook", "inspect_message"]
