"""What a test needs of PyTorch and this one may not have: the only place in the tests that asks."""

import inspect

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def _without(what):
    return f"PyTorch {torch.__version__} has no {what}"


HAS_FSDP2 = _VERSION >= (2, 6)
WITHOUT_FSDP2 = _without("FSDP2")
HAS_COMPILE = hasattr(torch, "compile")
WITHOUT_COMPILE = _without("torch.compile")
HAS_DCP = _VERSION >= (2, 2)
WITHOUT_DCP = _without("torch.distributed.checkpoint to rely on")
HAS_CPU_SCALER = hasattr(torch.amp, "GradScaler")
WITHOUT_CPU_SCALER = _without("GradScaler for the CPU")

# Gloo of 1.13 knows no bfloat16.
HALF_TYPES = (torch.float16, torch.bfloat16) if _VERSION >= (2, 0) else (torch.float16,)

# 2.13 has another name for it, and warns about the old one.
_NEW_NAME = "forward_sync_buffers" in inspect.signature(DDP).parameters
NO_BUFFERS = {"forward_sync_buffers" if _NEW_NAME else "broadcast_buffers": False}


def is_newer(text):
    """Python that this version has no parts for."""
    return any(
        word in text and not has
        for word, has in (
            ("torch.compile", HAS_COMPILE),
            ("fully_shard", HAS_FSDP2),
            ("dcp", HAS_DCP),
        )
    )


def as_this_version_has_it(text):
    """Python of the manual, which is for PyTorch 2.3 and newer; it says what was there before."""
    if HAS_CPU_SCALER:
        return text
    return text.replace("torch.amp.GradScaler(device.type)", "torch.cuda.amp.GradScaler()")
