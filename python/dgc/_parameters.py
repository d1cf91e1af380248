"""The parameters of a model as the compressor sees them."""

import weakref
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch

from . import _check, _core
from ._torch_versions import is_dtensor, is_whole_shard, unwrapped, without_wrappers

NamedParameters = Iterable[Tuple[str, torch.Tensor]]
Parameters = Union[torch.nn.Module, NamedParameters]


class Spec(NamedTuple):
    """A tensor as the compressor sees it."""

    name: str
    shape: List[int]
    dense: bool
    elements: int


def ddp_of(given: Any) -> "Optional[weakref.ref[torch.nn.Module]]":
    """The DDP module that was given, compiled or not."""
    module = unwrapped(given)
    is_ddp = isinstance(module, torch.nn.parallel.DistributedDataParallel)
    return weakref.ref(module) if is_ddp else None


def _pairs_of(operation: str, given: Any) -> List[Tuple[str, torch.Tensor]]:
    ddp = ddp_of(given)
    module = given if ddp is None else getattr(ddp(), "module")
    if isinstance(module, torch.nn.Module):
        return [(without_wrappers(name), p) for name, p in module.named_parameters()]

    def read(value: Any) -> List[Tuple[str, torch.Tensor]]:
        pairs = [(name, parameter) for name, parameter in value]
        if not all(isinstance(n, str) and isinstance(p, torch.Tensor) for n, p in pairs):
            raise TypeError
        return pairs

    kind = _check.Kind("a module, or pairs of names and parameters", read)
    example = "model or model.named_parameters()"
    return list(_check.check(operation, "parameters", given, kind, example))


def _check_parameter(operation: str, name: str, parameter: torch.Tensor) -> None:
    def fail(problem: str, hint: str) -> None:
        _core.fail("invalid_argument", operation, f"parameter '{name}'", problem, hint)

    if torch.nn.parameter.is_lazy(parameter):
        fail("has no shape yet", "run the model once before DDP and the state are made")
    if parameter.device.type == "meta":
        fail(
            "is on the device meta, which has no values",
            "make it real first: model.to_empty(device='cpu'), then load or initialise it",
        )
    if parameter.layout != torch.strided:
        fail(f"has layout {parameter.layout}", "use a dense (strided) parameter")
    if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        fail(f"is {parameter.dtype}", "use float32, float16 or bfloat16")


def named_parameters_of(operation: str, given: Any) -> List[Tuple[str, torch.Tensor]]:
    """Parameters that are trained, each once, by the names that they have without DDP."""
    found: List[Tuple[str, torch.Tensor]] = []
    seen: Set[torch.Tensor] = set()
    names: Set[str] = set()
    for name, parameter in _pairs_of(operation, given):
        if not parameter.requires_grad or parameter in seen:
            continue
        _check_parameter(operation, name, parameter)
        if name in names:
            _core.fail(
                "invalid_argument",
                operation,
                f"parameter '{name}'",
                "is the name of two parameters",
                "give each a name of its own",
            )
        seen.add(parameter)
        names.add(name)
        found.append((name, parameter))
    if not found:
        _core.fail(
            "invalid_argument",
            operation,
            "parameters",
            "none of them requires a gradient",
            "give the model that is trained, after requires_grad is set",
        )
    return found


def local_of(operation: str, name: str, parameter: torch.Tensor, sharded: bool) -> torch.Tensor:
    """What this rank has of a parameter: all of it with DDP, a part of it with FSDP2."""

    def fail(problem: str, hint: str) -> None:
        _core.fail("invalid_argument", operation, f"parameter '{name}'", problem, hint)

    if not is_dtensor(parameter):
        if sharded:
            fail(
                "is not sharded",
                "call fully_shard before the state is made; with DDP use dgc.DGCState",
            )
        return parameter
    if not sharded:
        fail("is a DTensor, of which this rank has a part", "with FSDP2 use dgc.ShardedState")
    if not is_whole_shard(parameter):
        fail(
            f"is laid out as {getattr(parameter, 'placements')}, not along one dimension",
            "give fully_shard the dimension that shards alone: fully_shard(model, "
            'mesh=mesh["shard"]). The other one is for dgc.ShardedState',
        )
    local: torch.Tensor = getattr(parameter, "to_local")()
    return local.detach()


def specs_of(named: Sequence[Tuple[str, torch.Tensor]], dense: Sequence[str]) -> List[Spec]:
    unknown = sorted(set(dense) - {name for name, _ in named})
    if unknown:
        _core.fail(
            "invalid_argument",
            "DGCState",
            f"dense: '{unknown[0]}'",
            "is not the name of a parameter that is trained",
            f"the first names are {', '.join(name for name, _ in named[:3])}",
        )
    return [Spec(name, list(p.shape), p.dim() < 2 or name in dense, p.numel()) for name, p in named]
