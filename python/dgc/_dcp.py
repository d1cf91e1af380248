"""A state in torch.distributed.checkpoint.

Each rank has values of its own, and DCP keeps one value for each name. So names have the rank in
them: "rank0-of-4/residual/layer.weight". Loading first looks up how many ranks have saved. Rank r of
M then reads what the old ranks r, r + M, ... saved.
"""

import json
import re
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple

import torch

from . import _core, _saved
from ._torch_versions import checkpoint_module, metadata_of

if TYPE_CHECKING:
    from .state import DGCState

# In front of it there may be the name that the state has in the checkpoint, and a dot.
_NAME = re.compile(r"^(?:(.*)\.)?rank(\d+)-of-(\d+)/(about|velocity|residual)(?:/(.*))?$")
# What is no tensor is text in a tensor, filled up: DCP wants to know the size beforehand.
_TEXT_BYTES = 1024


class _Found(NamedTuple):
    """A value in a checkpoint."""

    rank: int
    workers: int
    part: str
    tensor: str
    size: torch.Size


class DcpState:
    """A DGCState in the form that ``dcp.save`` and ``dcp.load`` work with (their ``Stateful``). See
    :meth:`DGCState.to_dcp`."""

    def __init__(self, state: "DGCState", checkpoint: Any = None) -> None:
        self._state, self._checkpoint = state, checkpoint
        checkpoint_module("to_dcp" if checkpoint is None else "from_dcp")

    def state_dict(self) -> Dict[str, Any]:
        """What DCP is to write, or what it is to fill."""
        return self._values() if self._checkpoint is None else self._empty()

    def _values(self) -> Dict[str, Any]:
        state = self._state
        saved = state._to_save()
        about = {key: saved[key] for key in saved if key not in ("rank", "shapes", *_saved.PARTS)}
        about["shapes"] = state._saved_shapes()
        place = f"rank{state._rank}-of-{state._workers}"
        values: Dict[str, Any] = {f"{place}/about": _text_tensor(about)}
        for part in _saved.PARTS:
            for tensor, spec in enumerate(state._specs):
                if spec.name in saved[part]:
                    values[f"{place}/{part}/{spec.name}"] = state._to_saved(
                        tensor, saved[part][spec.name]
                    )
        return values

    def _empty(self) -> Dict[str, Any]:
        state = self._state
        found = _find(self._checkpoint)
        self._workers = found[0].workers
        self._mine = _core.old_ranks_of(state._rank, state._workers, self._workers)
        by_name = {spec.name: tensor for tensor, spec in enumerate(state._specs)}
        values: Dict[str, Any] = {}
        for one in found:
            place = f"rank{one.rank}-of-{one.workers}"
            # A rank that no old rank falls to still needs to know the step.
            if one.part == "about" and (one.rank in self._mine or one.rank == 0):
                values[f"{place}/about"] = torch.zeros(one.size, dtype=torch.uint8)
            elif one.rank in self._mine and one.tensor in by_name:
                empty = state._to_saved(
                    by_name[one.tensor], torch.zeros(state._specs[by_name[one.tensor]].elements)
                )
                if empty.shape != one.size:
                    _saved.mismatch(
                        "from_dcp",
                        f"{one.part} of '{one.tensor}'",
                        f"is {list(empty.shape)} here and {list(one.size)} in what was saved",
                        "make the same model",
                    )
                values[f"{place}/{one.part}/{one.tensor}"] = empty
        return values

    def load_state_dict(self, loaded: Dict[str, Any]) -> None:
        state = self._state
        if self._checkpoint is None:
            _core.fail(
                "wrong_order",
                "dcp.load",
                "to_dcp()",
                "is for dcp.save",
                "give state.from_dcp(folder) to dcp.load",
            )
        abouts = {
            r: _text_of(loaded[f"rank{r}-of-{self._workers}/about"]) for r in {0, *self._mine}
        }
        everything = [self._one(rank, abouts[rank], loaded) for rank in self._mine]
        for about in abouts.values():
            if about["shapes"] != state._saved_shapes():
                _saved.refuse_shapes("from_dcp", about["shapes"], state._saved_shapes())
        with state._lock:
            _saved.load_shares(state._residuals, everything, int(abouts[0]["step"]))
            state._take_decisions(abouts[0])
            state._begin()

    def _one(self, rank: int, about: Dict[str, Any], loaded: Dict[str, Any]) -> _saved.Saved:
        """What state_dict() of an old rank would have been."""
        state = self._state
        shapes = {spec.name: list(spec.shape) for spec in state._specs}
        one: _saved.Saved = {**about, "rank": rank, "shapes": shapes}
        for part in _saved.PARTS:
            one[part] = {}
            for tensor, spec in enumerate(state._specs):
                values = loaded.get(f"rank{rank}-of-{self._workers}/{part}/{spec.name}")
                if values is not None:
                    one[part][spec.name] = state._from_saved(tensor, values)
        return one


def _find(checkpoint: Any) -> List[_Found]:
    try:
        metadata = metadata_of(checkpoint)
    except OSError as error:
        _core.fail("io", "from_dcp", str(checkpoint), str(error), "give the folder of dcp.save")
    matches = [(_NAME.match(name), one) for name, one in metadata.items()]
    found = [
        (m[1], _Found(int(m[2]), int(m[3]), m[4], m[5] or "", one.size))
        for m, one in matches
        if m is not None
    ]
    names = sorted({str(name) for name, _ in found})
    if len(names) != 1:
        _core.fail(
            "state_mismatch",
            "from_dcp",
            str(checkpoint),
            f"has {len(names)} states of dgc in it" + (f": {', '.join(names)}" if names else ""),
            'save one: dcp.save({..., "dgc": state.to_dcp()}, checkpoint_id=folder)',
        )
    return [one for _, one in found]


def _text_tensor(value: Any) -> torch.Tensor:
    text = json.dumps(value).encode()
    text += b" " * (-len(text) % _TEXT_BYTES)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _text_of(tensor: torch.Tensor) -> Dict[str, Any]:
    value: Dict[str, Any] = json.loads(bytes(tensor.tolist()))
    return value
