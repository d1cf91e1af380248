"""What a rank sends of a bucket: a message of libdgc (docs/format.md) behind a header, padded.

All slots of a bucket are of one size, which every rank computes alike, so that a single all-gather
moves them. Little-endian: magic "DGCB", version (1 byte), status (1), sender (2), step (8), number
of the exchange in its step (4), number of tensors (4), hash of their parameters, 0 when it is not
their turn (8); one bit for each tensor, set where this rank has a gradient, padded to 8 bytes; then
the message or, where this rank failed, the parts of its error. The rest is zero.
"""

import ctypes
import struct
from typing import List, NamedTuple, Sequence

import torch

from . import _core

_HEADER = struct.Struct("<4sBBHQIIQ")
_MAGIC = b"DGCB"
_VERSION = 1
_OK, _FAILED = 0, 1
# Enough for what an error says.
_LEAST = 1024


class Slot(NamedTuple):
    """A slot as it was received."""

    step: int
    exchange: int
    present: List[bool]
    parameters: int
    failed: bool
    address: int  # of the message
    size: int


def _message_offset(tensors: int) -> int:
    return _HEADER.size + (tensors + 63) // 64 * 8


def size_of(tensors: int, message: int) -> int:
    """Bytes of a slot for a message of at most so many."""
    return _message_offset(tensors) + max(message, _LEAST)


def room_of(slot: torch.Tensor, tensors: int) -> "tuple[int, int]":
    """Address and size of the part that is for the message."""
    offset = _message_offset(tensors)
    return slot.data_ptr() + offset, slot.numel() - offset


def write_header(
    slot: torch.Tensor,
    sender: int,
    step: int,
    exchange: int,
    present: Sequence[bool],
    parameters: int = 0,
    failed: bool = False,
) -> None:
    bits = bytearray(_message_offset(len(present)) - _HEADER.size)
    for i, is_present in enumerate(present):
        bits[i // 8] |= is_present << (i % 8)
    header = (
        _HEADER.pack(
            _MAGIC,
            _VERSION,
            _FAILED if failed else _OK,
            sender,
            step,
            exchange,
            len(present),
            parameters,
        )
        + bits
    )
    slot[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)


def write_error(slot: torch.Tensor, tensors: int, error: Exception) -> None:
    """In place of the message."""
    parts = [
        getattr(error, part, "") for part in ("code", "operation", "subject", "problem", "hint")
    ]
    if not parts[0]:
        parts = ["internal", "hook", type(error).__name__, str(error), ""]
    text = "\0".join(parts).encode()[:_LEAST]
    offset = _message_offset(tensors)
    slot[offset:].zero_()
    slot[offset : offset + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)


def read(slot: torch.Tensor, rank: int, tensors: int) -> Slot:
    """Of a slot on the CPU. What is not one is an Error."""
    offset = _message_offset(tensors)
    raw = ctypes.string_at(slot.data_ptr(), offset)
    magic, version, status, sender, step, exchange, count, parameters = _HEADER.unpack_from(raw)
    if magic != _MAGIC or version != _VERSION or sender != rank or count != tensors:
        _core.fail(
            "configuration_mismatch",
            "exchange",
            f"rank {rank}",
            "sent something else than a bucket of these tensors",
            "all ranks have to make the same calls, with the same options and version",
        )
    bits = raw[_HEADER.size :]
    present = [bool(bits[i // 8] >> (i % 8) & 1) for i in range(tensors)]
    address, room = room_of(slot, tensors)
    # The message says how long it is, at offset 24; its own checks come later.
    length = struct.unpack("<Q", ctypes.string_at(address + 24, 8))[0]
    return Slot(step, exchange, present, parameters, status != _OK, address, min(length, room))


def raise_error(slot: torch.Tensor, rank: int, tensors: int) -> None:
    """Raises what a rank failed with."""
    text = (
        ctypes.string_at(room_of(slot, tensors)[0], _LEAST).rstrip(b"\0").decode(errors="replace")
    )
    code, operation, subject, problem, hint = (text.split("\0") + [""] * 5)[:5]
    _core.fail(
        code,
        operation,
        subject,
        problem if "rank " in subject + problem else f"{problem}, rank {rank}",
        hint,
    )
