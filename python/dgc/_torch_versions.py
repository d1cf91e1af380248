"""What differs between versions of PyTorch, and what the package knows of PyTorch's inside. No other
file asks for a version."""

import importlib
import sys
import warnings
from types import FrameType
from typing import IO, Any, NoReturn, Optional, Tuple

import torch
import torch.distributed

from . import _core

# 1.13 has no types for these functions, 2.x has. This name is checked alike with both.
dist: Any = torch.distributed


def needs(operation: str, subject: str, version: str, hint: str) -> NoReturn:
    """Of a part of PyTorch that this one does not have."""
    problem = f"needs PyTorch {version} or newer, this is {torch.__version__}"
    _core.fail("unsupported_target", operation, subject, problem, hint)


def scaler_example() -> str:
    """torch.cuda.amp.GradScaler is deprecated from 2.4 on; torch.amp has one from 2.3 on."""
    has_new = hasattr(torch.amp, "GradScaler")
    return "torch.amp.GradScaler('cuda')" if has_new else "torch.cuda.amp.GradScaler()"


# ---- process groups ------------------------------------------------------------------------------


def group_of(process_group: Any) -> Any:
    """The group itself where None stands for the default one."""
    return dist.distributed_c10d._get_default_group() if process_group is None else process_group


def global_rank(process_group: Any, rank: int) -> int:
    """Of a rank of the group, in the default group. 1.12 has another name for it."""
    if process_group is None:
        return rank
    c10d = dist.distributed_c10d
    found = getattr(c10d, "get_global_rank", None) or c10d._get_global_rank
    return int(found(process_group, rank))


def is_gloo(group: Any) -> bool:
    """Whether Gloo moves tensors of the CPU. From 2.0 on a group has a backend for each device; its
    name is "undefined" where init_process_group was not told one."""
    if dist.get_backend(group) == "gloo":
        return True
    if not hasattr(group, "_get_backend"):
        return False
    try:
        return str(group._get_backend(torch.device("cpu")).name()).lower() == "gloo"
    except RuntimeError:
        return False  # it has none for the CPU


# ---- modules around modules ---------------------------------------------------------------------

# Parts of names that torch.compile and checkpoint_wrapper put into those of a model.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def without_wrappers(name: str) -> str:
    """A parameter's name as it is in the plain model."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def unwrapped(module: Any) -> Any:
    """What torch.compile was given."""
    return getattr(module, "_orig_mod", module)


# ---- DTensor and FSDP2 -------------------------------------------------------------------------


def check_fsdp2(operation: str) -> None:
    if _version() < (2, 6):
        needs(operation, "FSDP2", "2.6", "with this version, use DDP and dgc.hook")


def is_dtensor(tensor: Any) -> bool:
    """Without importing what makes DTensors, which takes a while: then there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_whole_shard(tensor: Any) -> bool:
    """A DTensor that one dimension of a mesh shares out, as fully_shard makes it."""
    placements = tensor.placements
    return len(placements) == 1 and type(placements[0]).__name__ == "Shard"


def dtensor_of(local: torch.Tensor, like: Any) -> Any:
    """A DTensor with this local part, and all else as of another."""
    module: Any = sys.modules["torch.distributed.tensor"]
    return module.DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def is_mesh(given: Any) -> bool:
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(given, module.DeviceMesh)


def before_each_step(optimizer: Any, call: Any) -> Any:
    """Calls call(optimizer, args, kwargs) at the begin of optimizer.step(). Returns a handle."""
    return optimizer.register_step_pre_hook(call)


# ---- DDP's join ----------------------------------------------------------------------------------


def is_in_join(ddp: Any) -> bool:
    """Whether DDP runs under its join(). It is not asked to say so."""
    return bool(getattr(getattr(ddp, "_join_config", None), "enable", False))


def is_called_for_join(caller: Optional[FrameType]) -> bool:
    """Whether DDP calls the hook for a rank that has no inputs left, with zeros in the bucket."""
    return caller is not None and caller.f_code.co_name == "_match_all_reduce_for_bwd_pass"


# ---- torch.distributed.checkpoint ----------------------------------------------------------------


def is_called_by_dcp(caller: Optional[FrameType]) -> bool:
    name = caller.f_globals.get("__name__", "") if caller is not None else ""
    return str(name).startswith("torch.distributed.checkpoint")


def metadata_of(checkpoint: Any) -> Any:
    """What is in a checkpoint: the metadata of each value by its name. `checkpoint` is a folder or
    a StorageReader."""
    dcp = checkpoint_module("from_dcp")
    reader = (
        checkpoint if hasattr(checkpoint, "read_metadata") else dcp.FileSystemReader(checkpoint)
    )
    with warnings.catch_warnings():  # advice about pickle, which is for PyTorch's own code
        warnings.simplefilter("ignore", FutureWarning)
        return reader.read_metadata().state_dict_metadata


def checkpoint_module(operation: str) -> Any:
    if _version() < (2, 2):
        hint = "with this version, save state.state_dict() on every rank with torch.save"
        needs(operation, "torch.distributed.checkpoint", "2.2", hint)
    return importlib.import_module("torch.distributed.checkpoint")


# ---- files ---------------------------------------------------------------------------------------


def load_tensors(file: IO[bytes]) -> Any:
    """What this user has saved: tensors, numbers, texts, and lists and dictionaries of them."""
    if _version() < (2, 4):
        return torch.load(file)  # those with weights_only knew no fractions at first
    return torch.load(file, weights_only=True)


def _version() -> Tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
