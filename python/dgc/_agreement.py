"""Texts that all ranks tell each other, outside the rounds of a step."""

from typing import Any, List

import torch

from ._torch_versions import dist


def wire_device(group: Any, device: torch.device) -> torch.device:
    """Where tensors have to be that this group moves, for parameters on a device."""
    return device if dist.get_backend(group) == "nccl" else torch.device("cpu")


def gather_texts(group: Any, device: torch.device, text: str) -> List[str]:
    """The texts of all ranks. Not all_gather_object, which needs NumPy: PyTorch does not install
    it."""
    gather: Any = dist.all_gather
    own = bytearray(text.encode())
    sizes = [
        torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))
    ]
    gather(sizes, torch.tensor([len(own)], device=device), group=group)
    room = int(max(size.item() for size in sizes))
    padded = torch.frombuffer(own + bytes(room - len(own)), dtype=torch.uint8).to(device)
    received = [torch.empty_like(padded) for _ in sizes]
    gather(received, padded, group=group)
    return [bytes(raw[: int(size.item())].tolist()).decode() for raw, size in zip(received, sizes)]
