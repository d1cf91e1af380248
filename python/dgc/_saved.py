"""What DGCState.state_dict makes: u, v and the step of one rank. How it is checked, and shared out
when training goes on with another number of workers."""

from typing import Any, Dict, List, NoReturn, Sequence, Union

import torch

from . import _check, _core
from ._parameters import Spec
from ._residuals import Residuals

VERSION = 1
PARTS = ("velocity", "residual")
DECISIONS = "decisions"  # of ratio "auto", where it is

Saved = Dict[str, Any]
# Of one rank, or of all.
AnySaved = Union[Saved, Sequence[Saved]]

_OPERATION = "load_state_dict"
_WANTED = _check.Kind(
    "what state_dict() returned, or the list of what it returned on all ranks", list
)


def _read_decision(one: Any) -> None:
    step, ratio, seconds = one
    _check.whole(0).read(step)
    _check.SHARE.read(ratio)
    _check.within(0.0).read(seconds)


_DECISION = _check.Kind("a step, a ratio and seconds", _read_decision)


def make(residuals: Residuals, rank: int, workers: int, options: Dict[str, Any]) -> Saved:
    """Copies on the CPU."""
    specs = residuals.specs
    saved: Saved = {
        "version": VERSION,
        "rank": rank,
        "workers": workers,
        "step": residuals.step,
        "shapes": {s.name: list(s.shape) for s in specs},
        "options": options,
    }
    for part in PARTS:
        tensors = ((s.name, residuals.part(part, t)) for t, s in enumerate(specs))
        saved[part] = {name: t.detach().cpu().clone() for name, t in tensors if t is not None}
    return saved


def load(residuals: Residuals, saved: Any, rank: int, workers: int) -> None:
    """Into residuals that may be in the middle of a step. On an Error nothing has changed."""
    everything = _list_of(saved)
    for one in everything:
        _check_one(one, residuals)
    if isinstance(saved, dict):
        if (saved["rank"], saved["workers"]) != (rank, workers):
            _mismatch(
                f"rank {rank} of {workers}",
                f"was given what rank {saved['rank']} of {saved['workers']} saved",
                "give the list of what all ranks saved",
            )
        mine = everything
    else:
        mine = _share_of(everything, rank, workers)
    step = everything[0]["step"]
    if any(one["step"] != step for one in everything):
        _mismatch("list", "was not saved at one step", "give what all ranks saved at the same step")
    _put(residuals, mine, step)


def load_shares(residuals: Residuals, mine: Sequence[Saved], step: int) -> None:
    """What old ranks saved that fall to this one; there may be none. On an Error nothing has
    changed."""
    for one in mine:
        _check_one(one, residuals)
        if one["step"] != step:
            problem = f"is of step {one['step']}, rank 0 of step {step}"
            mismatch(_OPERATION, f"rank {one['rank']}", problem, "save all ranks at one step")
    _put(residuals, mine, step)


def _put(residuals: Residuals, mine: Sequence[Saved], step: int) -> None:
    # A step that ended in the middle is not to be put back over what is loaded.
    residuals.restore()
    for t, spec in enumerate(residuals.specs):
        for part in PARTS:
            target = residuals.part(part, t)
            if target is None:
                continue
            target.zero_()
            for one in mine:
                target.add_(one[part][spec.name].to(target.device))
    residuals.step = step


def _share_of(everything: Sequence[Saved], rank: int, workers: int) -> List[Saved]:
    """Old rank i goes to rank i mod `workers`: the sums of u and of v over all workers stay."""
    by_rank = sorted(everything, key=lambda one: int(one["rank"]))
    if [one["rank"] for one in by_rank] != list(range(by_rank[0]["workers"])):
        _mismatch(
            "list",
            f"has ranks {[one['rank'] for one in by_rank]} of a run with "
            f"{by_rank[0]['workers']} workers",
            "give what every rank of one run saved, each once",
        )
    return [by_rank[old] for old in _core.old_ranks_of(rank, workers, len(by_rank))]


def mismatch(operation: str, subject: str, problem: str, hint: str) -> NoReturn:
    _core.fail("state_mismatch", operation, subject, problem, hint)


def _mismatch(subject: str, problem: str, hint: str) -> None:
    mismatch(_OPERATION, subject, problem, hint)


def refuse_shapes(operation: str, saved: Dict[str, Any], here: Dict[str, Any]) -> NoReturn:
    """Names the first tensor that differs."""
    name = next(n for n in [*here, *saved] if here.get(n) != saved.get(n))
    problem = (
        f"is {here.get(name, 'missing')} here and {saved.get(name, 'missing')} in what was saved"
    )
    mismatch(operation, f"'{name}'", problem, "make the same model")


def _list_of(saved: Any) -> List[Saved]:
    everything = [saved] if isinstance(saved, dict) else saved
    good = isinstance(everything, (list, tuple)) and everything
    if not good or not all(isinstance(one, dict) for one in everything):
        _check.refuse(_OPERATION, "saved", saved, _WANTED.wanted, "torch.load(file)['dgc']")
    return list(everything)


def _check_one(saved: Saved, residuals: Residuals) -> None:
    keys = ("version", "rank", "workers", "step", "shapes", *PARTS)
    missing = [key for key in keys if key not in saved]
    if missing:
        _check.refuse(
            _OPERATION,
            "saved",
            f"a dict without '{missing[0]}'",
            _WANTED.wanted,
            "torch.load(file)['dgc']",
        )
    if saved["version"] != VERSION:
        _core.fail(
            "bad_version",
            _OPERATION,
            "version",
            f"{_check.shown(saved['version'])} is not one that this package reads",
            f"use the version of dgc that wrote it; this one reads version {VERSION}",
        )
    for key in ("rank", "workers", "step"):
        _check.check(_OPERATION, key, saved[key], _check.whole(0), f"{key} 4")
    for one in saved.get(DECISIONS, []):
        _check.check(_OPERATION, DECISIONS, one, _DECISION, "what state_dict() returned")
    for key in ("shapes", *PARTS):
        if not isinstance(saved[key], dict):
            _check.refuse(_OPERATION, key, saved[key], "a dict", "what state_dict() returned")
    shapes = {s.name: list(s.shape) for s in residuals.specs}
    if saved["shapes"] != shapes:
        refuse_shapes(_OPERATION, saved["shapes"], shapes)
    if bool(saved["velocity"]) != (residuals.part("velocity", 0) is not None):
        was = saved.get("options", {}).get("momentum", "on" if saved["velocity"] else "off")
        _mismatch(
            "momentum",
            f"was {was} when this was saved; there is a velocity with momentum and local "
            "momentum correction only",
            "make the state with the momentum and momentum_correction that were used",
        )
    for t, spec in enumerate(residuals.specs):
        for part in PARTS:
            if residuals.part(part, t) is not None:
                _check_tensor(saved[part].get(spec.name), part, spec)


def _check_tensor(values: Any, part: str, spec: Spec) -> None:
    subject = f"{part} of '{spec.name}'"
    if not isinstance(values, torch.Tensor):
        _check.refuse(_OPERATION, subject, values, "a tensor", "what state_dict() returned")
    if values.dtype != torch.float32 or list(values.shape) != [spec.elements]:
        _mismatch(
            subject,
            f"is {list(values.shape)} of {values.dtype}, and has to be "
            f"[{spec.elements}] of torch.float32",
            "give what state_dict() returned, unchanged",
        )
    if not bool(torch.isfinite(values).all()):
        _mismatch(subject, "has values that are Inf or NaN", "go back to an earlier checkpoint")
