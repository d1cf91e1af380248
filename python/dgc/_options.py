"""What users give, checked and brought into one form."""

import warnings
from typing import Iterable, List, Optional, Sequence, Tuple, Union

import torch

from . import _core
from ._residuals import Spec
from .optim import SGD

NamedParameters = Iterable[Tuple[str, torch.nn.Parameter]]
# Steps of the paper's warm-up, or ratios with the steps of each.
Warmup = Union[int, Tuple[Sequence[float], int]]

_PAPER = (0.25, 0.0625, 0.015625, 0.004)


def schedule_of(ratio: float, warmup: Optional[Warmup], schedule: Union[_core.Schedule, str, None]) -> _core.Schedule:
    if schedule is not None:
        if warmup is not None or ratio != 0.001:
            _core.fail("invalid_argument", "DGCState", "schedule", "says everything about the ratio", "give no ratio and no warmup beside it")
        return _core.Schedule.parse(schedule) if isinstance(schedule, str) else schedule
    if warmup is None or warmup == 0:
        return _core.Schedule(ratio)
    if not isinstance(warmup, int):
        ratios, steps_each = warmup
        return _core.Schedule.stages(list(ratios), steps_each, ratio)
    if ratio == 0.001:
        return _core.Schedule.paper(warmup)
    ratios = [stage for stage in _PAPER if stage > ratio]
    if not ratios:
        return _core.Schedule(ratio)
    return _core.Schedule.stages(ratios, max(1, warmup // len(ratios)), ratio)


def named_parameters_of(given: Union[torch.nn.Module, NamedParameters]) -> List[Tuple[str, torch.nn.Parameter]]:
    """Parameters that are trained, each once, by the names that they have without DDP."""
    is_ddp = isinstance(given, torch.nn.parallel.DistributedDataParallel)
    module = given.module if is_ddp else given
    named = module.named_parameters() if isinstance(module, torch.nn.Module) else module
    found, seen = [], set()
    for name, parameter in named:
        if not isinstance(parameter, torch.Tensor):
            _core.fail("invalid_argument", "DGCState", f"'{name}'", f"is a {type(parameter).__name__} and not a parameter",
                       "give a module, or module.named_parameters()")
        if not parameter.requires_grad or parameter in seen:
            continue
        seen.add(parameter)
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            _core.fail("invalid_argument", "DGCState", f"parameter '{name}'", f"is {parameter.dtype}", "use float32, float16 or bfloat16")
        found.append((name, parameter))
    if not found:
        _core.fail("invalid_argument", "DGCState", "parameters", "none requires a gradient")
    return found


def specs_of(named: Sequence[Tuple[str, torch.nn.Parameter]], dense: Sequence[str]) -> List[Spec]:
    unknown = set(dense) - {name for name, _ in named}
    if unknown:
        _core.fail("invalid_argument", "DGCState", f"'{sorted(unknown)[0]}'", "is in `dense`, but no parameter that is trained has this name")
    return [Spec(name, list(p.shape), p.dim() < 2 or name in dense, p.numel()) for name, p in named]


def check_optimizer(optimizer: torch.optim.Optimizer, momentum: float, nesterov: bool) -> None:
    """The momentum is in v already: an optimizer that has its own would apply it twice."""
    if isinstance(optimizer, SGD):
        for group in optimizer.param_groups:
            if (group["momentum"], group["nesterov"]) != (momentum, nesterov):
                _core.fail("invalid_argument", "DGCState", "optimizer",
                           f"dgc.SGD has momentum {group['momentum']}, nesterov {group['nesterov']}, this state {momentum} and {nesterov}",
                           "give both the same")
        return
    for group in optimizer.param_groups:
        if group.get("momentum", 0.0) != 0.0 or "betas" in group:
            _core.fail("invalid_argument", "DGCState", "optimizer", f"{type(optimizer).__name__} has momentum of its own, which would be applied twice",
                       "use torch.optim.SGD(lr=..., momentum=0) or dgc.SGD; DGCState(momentum=...) is the momentum")
        if group.get("weight_decay", 0.0) != 0.0 and momentum != 0.0:
            warnings.warn("weight decay of a plain optimizer gets no momentum under dgc.hook; dgc.SGD gives it what torch.optim.SGD would", stacklevel=3)
