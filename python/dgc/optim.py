"""The optimizer beside dgc.hook where there is weight decay."""

from typing import Any, Callable, Dict, Iterable, Optional, Union

import torch


class SGD(torch.optim.Optimizer):
    """``w -= lr * (gradient + d)``, where ``d`` is the momentum of the weight decay alone.

    The gradients that :func:`dgc.hook` returns have their momentum in them. Weight decay never goes through the
    compressor: it depends on the parameters only, which are the same on every rank. Momentum SGD is linear, so that a second,
    local buffer of ``weight_decay * w`` gives what ``torch.optim.SGD(momentum=..., weight_decay=...)`` would. Give
    ``momentum`` and ``nesterov`` as to :class:`dgc.DGCState`, which compares them when it is told of the optimizer::

        optimizer = dgc.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        state = dgc.DGCState(model, momentum=0.9, optimizer=optimizer)
        ddp.register_comm_hook(state, dgc.hook)

    Parameters without gradient are left alone, their decay too. A step that the state skipped changes nothing.
    """

    def __init__(self, params: Union[Iterable[torch.Tensor], Iterable[Dict[str, Any]]], lr: float, momentum: float = 0.9,
                 weight_decay: float = 0.0, nesterov: bool = False) -> None:
        if not lr >= 0.0:
            raise ValueError(f"dgc.SGD: lr is {lr}; give 0 or more")
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"dgc.SGD: momentum is {momentum}; it has to be in [0, 1)")
        if not weight_decay >= 0.0:
            raise ValueError(f"dgc.SGD: weight_decay is {weight_decay}; give 0 or more")
        if nesterov and momentum == 0.0:
            raise ValueError("dgc.SGD: nesterov needs a momentum above 0")
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov))
        self.dgc_state: Optional[Any] = None  # set by DGCState(optimizer=...)

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
        return {**super().__getstate__(), "dgc_state": None}
