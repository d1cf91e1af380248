"""The optimizer beside dgc.hook where there is weight decay, and the check of other optimizers."""

import sys
import warnings
from typing import Any, Callable, Dict, Iterable, Optional, Set, Union

import torch

from . import _check, _core
from ._check import FLAG, within
from ._options import Options

_OPTIONS = {
    "lr": (within(0.0), "0.1"),
    "momentum": (within(0.0, 1.0), "0.9"),
    "weight_decay": (within(0.0), "1e-4"),
    "nesterov": (FLAG, "True"),
}


class SGD(torch.optim.Optimizer):
    """``w -= lr * (gradient + d)``, where ``d`` is the momentum of the weight decay alone.

    The gradients that :func:`dgc.hook` returns have their momentum in them. Weight decay never goes
    through the compressor: it depends on the parameters only, which are the same on every rank.
    Momentum SGD is linear, so that a second, local buffer of ``weight_decay * w`` gives what
    ``torch.optim.SGD(momentum=..., weight_decay=...)`` would. Give ``momentum`` and ``nesterov`` as
    to :class:`dgc.DGCState`, which compares them::

        optimizer = dgc.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        state = dgc.DGCState(ddp, momentum=0.9, optimizer=optimizer)
        ddp.register_comm_hook(state, dgc.hook)

    Parameters without gradient are left alone, their decay too. A step that the state skipped
    changes nothing. Raises ValueError for arguments outside their range, as PyTorch's optimizers
    do.
    """

    def __init__(
        self,
        params: Union[Iterable[torch.Tensor], Iterable[Dict[str, Any]]],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        self.dgc_state: Optional[Any] = None  # set by DGCState(optimizer=...)
        defaults = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        _check_group(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            _check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.dgc_state is not None and self.dgc_state.skipped:
            return loss
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                # First, while w is what the gradient was computed at.
                self._decay(group, parameter)
                parameter.add_(parameter.grad, alpha=-group["lr"])
        return loss

    def _decay(self, group: Dict[str, Any], parameter: torch.Tensor) -> None:
        decay, m, lr = group["weight_decay"], group["momentum"], group["lr"]
        state = self.state[parameter]
        if m == 0.0:
            if decay != 0.0:
                parameter.mul_(1.0 - lr * decay)
            return
        if "decay" not in state:
            if decay == 0.0:
                return
            state["decay"] = torch.zeros_like(parameter)
        d = state["decay"]
        if group["nesterov"]:
            g = parameter * decay
            d.add_(g).mul_(m)
            parameter.add_(d + g, alpha=-lr)
        else:
            d.mul_(m).add_(parameter, alpha=decay)
            parameter.add_(d, alpha=-lr)

    def __getstate__(self) -> Dict[str, Any]:
        # A state is saved on its own, and is not the same on all ranks.
        saved: Any = super().__getstate__()
        return {**saved, "dgc_state": None}


def _check_group(group: Dict[str, Any]) -> None:
    try:
        for name, (kind, example) in _OPTIONS.items():
            _check.check("dgc.SGD", name, group[name], kind, f"{name}={example}")
        if group["nesterov"] and group["momentum"] == 0.0:
            _check.refuse("dgc.SGD", "nesterov", True, "False without momentum", "momentum=0.9")
    except _core.Error as error:
        raise ValueError(str(error)) from None


# What the gradients after dgc.hook have to be applied with.
_RULE = "apply p.grad with torch.optim.SGD(lr=..., momentum=0), or with dgc.SGD for weight decay"


def momentum_problem(optimizer: torch.optim.Optimizer, options: Options) -> str:
    """Why an optimizer does not go with the state's momentum; empty if it does. Asked at each step:
    OneCycleLR, for example, gives an optimizer a momentum that it did not have."""
    momentum, nesterov = options.momentum, options.nesterov
    for group in optimizer.param_groups:
        own = group.get("momentum", 0.0)
        if options.late:
            if type(optimizer) is not torch.optim.SGD or group["dampening"] != 0.0:
                return (
                    "momentum_correction='off' leaves momentum to torch.optim.SGD without "
                    f"dampening, and this is {type(optimizer).__name__}"
                )
            if (own, group["nesterov"]) != (momentum, nesterov):
                return (
                    f"torch.optim.SGD has momentum {own}, nesterov {group['nesterov']}, this state "
                    f"{momentum} and {nesterov}, with momentum_correction='off': give both the same"
                )
        elif isinstance(optimizer, SGD):
            if (own, group["nesterov"]) != (momentum, nesterov):
                return (
                    f"dgc.SGD has momentum {own}, nesterov {group['nesterov']}, "
                    f"this state {momentum} and {nesterov}: give both the same"
                )
        elif own != 0.0 or "betas" in group:
            return (
                f"{type(optimizer).__name__} has momentum of its own, which would be applied "
                "twice: the state's momentum is in the gradients already"
            )
    return ""


def innermost(optimizer: Any) -> Any:
    """The one that applies gradients: Accelerate, for example, puts one of its own around it."""
    inner = getattr(optimizer, "optimizer", None)
    return innermost(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def _warn(text: str) -> None:
    """Of the line of the script that called the package, by whatever way."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def warn_without_optimizer() -> None:
    _warn(
        "dgc.DGCState(optimizer=None) cannot check how gradients are applied. They have the "
        f"state's momentum in them: {_RULE}. An optimizer with momentum of its own, such as "
        "SGD(momentum=0.9) or AdamW, trains wrongly."
    )


def check_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Set[torch.Tensor],
    options: Options,
) -> None:
    """An optimizer that would train wrongly is refused, one that may is warned about."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        _check.refuse(
            "DGCState",
            "optimizer",
            optimizer,
            "an optimizer of PyTorch, or None",
            "optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1)",
        )
    kind = type(optimizer).__name__
    is_known = isinstance(optimizer, (SGD, torch.optim.SGD))
    problem = momentum_problem(optimizer, options)
    if not problem and not is_known and type(optimizer).__module__.startswith("torch.optim."):
        problem = f"{kind} computes its step from more than the gradient, as it comes without dgc"
    if problem:
        late = f"torch.optim.SGD(lr=..., momentum={options.momentum}, nesterov={options.nesterov})"
        _core.fail(
            "invalid_argument", "DGCState", "optimizer", problem, late if options.late else _RULE
        )
    if not any(p in parameters for group in optimizer.param_groups for p in group["params"]):
        _core.fail(
            "invalid_argument",
            "DGCState",
            "optimizer",
            "has none of the parameters of this state",
            "make both of the same model",
        )
    if isinstance(optimizer, SGD) or options.late:
        return
    if not is_known:
        _warn(
            f"dgc.DGCState does not know {kind}: it has to apply w -= lr * p.grad, without "
            "momentum of its own"
        )
    if options.momentum != 0.0 and any(
        group.get("weight_decay", 0.0) != 0.0 for group in optimizer.param_groups
    ):
        _warn(
            f"weight decay of {kind} gets no momentum under dgc.hook; dgc.SGD gives it what "
            "torch.optim.SGD would"
        )
