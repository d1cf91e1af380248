"""The parameters of a model as the compressor sees them."""

from typing import Any, Iterable, List, NamedTuple, Sequence, Set, Tuple, Union

import torch

from . import _check, _core

NamedParameters = Iterable[Tuple[str, torch.Tensor]]
Parameters = Union[torch.nn.Module, NamedParameters]


class Spec(NamedTuple):
    """A tensor as the compressor sees it."""

    name: str
    shape: List[int]
    dense: bool
    elements: int


def _pairs_of(operation: str, given: Any) -> List[Tuple[str, torch.Tensor]]:
    is_ddp = isinstance(given, torch.nn.parallel.DistributedDataParallel)
    module = given.module if is_ddp else given
    if isinstance(module, torch.nn.Module):
        return list(module.named_parameters())

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
