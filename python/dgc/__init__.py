"""Deep Gradient Compression for PyTorch's DistributedDataParallel.

Two new lines make a DDP script send 0.1 % of each gradient, and the optimizer's momentum moves to
the state::

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)  # no momentum here: the state has it
    state = dgc.DGCState(ddp, optimizer=optimizer, momentum=0.9, warmup=4 * steps_per_epoch)
    ddp.register_comm_hook(state, dgc.hook)

With FSDP2 use :class:`dgc.ShardedState`, which compresses between replicas.
With weight decay use :class:`dgc.SGD` in place of ``torch.optim.SGD``. The hook does not support Adam:
:class:`dgc.LocalSteps` takes any optimizer, and exchanges after every so many steps.
:func:`dgc.join` trains with a hub, which members join and leave over the internet.
docs/pytorch.md has the rest.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise  # PyTorch is there, and lacks something itself
    raise ModuleNotFoundError(
        "dgc needs PyTorch 1.12 or newer, and this Python has none. Install the build that fits "
        "your machine (https://pytorch.org/get-started/locally), then import dgc again.",
        name="torch",
    ) from None

from ._core import Error, Schedule, __version__, inspect_message
from ._hook import hook
from ._hub_order import Work
from .local_steps import LocalSteps
from .member import Member, join
from .optim import SGD
from .sharded import ShardedState
from .state import DGCState, StepStats

__all__ = [
    "DGCState",
    "Error",
    "LocalSteps",
    "Member",
    "SGD",
    "Schedule",
    "ShardedState",
    "StepStats",
    "Work",
    "__version__",
    "hook",
    "inspect_message",
    "join",
]
