#!/usr/bin/env python3
"""Reference for what hub and members send each other: packets, and what a commit does.

Written from docs/hub.md alone and sharing no code with the library, so that tests can use it as an
oracle. It favours being easy to compare with the document over speed.

    reference_packet.py FILE...                      head and sizes of byte strings, one line each
    reference_packet.py --doc-example docs/hub.md    the same for the document's worked example
"""

import json
import pathlib
import struct
import sys
from typing import Any, Dict, List, Sequence, Tuple

sys.path.append(str(pathlib.Path(__file__).parents[1] / "wire"))
import reference_decoder as wire

MAGIC, VERSION = b"DGCH", 1
FIXED = struct.Struct("<4sB3xII")
LONGEST_HEAD, MOST_STRINGS, DEEPEST = 4 << 20, 65536, 16

Packet = Tuple[Dict[str, Any], List[bytes]]


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max((depth(v) for v in inner), default=0)


def encode(head: Dict[str, Any], strings: Sequence[bytes] = ()) -> bytes:
    text = json.dumps(head, separators=(",", ":"), sort_keys=True).encode()
    data = FIXED.pack(MAGIC, VERSION, len(text), len(strings))
    data += b"".join(struct.pack("<Q", len(s)) for s in strings) + text + b"".join(strings)
    return data + struct.pack("<Q", wire.xxh64(data))


def decode(data: bytes) -> Packet:
    wire.require(len(data) < 4 or data[:4] == MAGIC, "bad_magic")
    wire.require(len(data) >= FIXED.size + 8, "truncated")
    _, version, head_size, count = FIXED.unpack_from(data)
    wire.require(version == VERSION, "bad_version")
    wire.require(data[5:8] == b"\0\0\0", "reserved_bits")
    wire.require(head_size <= LONGEST_HEAD and count <= MOST_STRINGS, "bad_length")
    at = FIXED.size + 8 * count
    wire.require(len(data) >= at + head_size + 8, "truncated")
    sizes = struct.unpack_from(f"<{count}Q", data, FIXED.size)
    end = at + head_size + sum(sizes) + 8
    wire.require(len(data) >= end, "truncated")
    wire.require(len(data) <= end, "trailing_bytes")
    wire.require(wire.xxh64(data[:-8]) == struct.unpack_from("<Q", data, len(data) - 8)[0], "checksum_mismatch")
    try:
        head = json.loads(data[at:at + head_size])
    except ValueError:
        head = None
    wire.require(isinstance(head, dict) and depth(head) <= DEEPEST + 1, "bad_state")
    at += head_size
    strings = []
    for size in sizes:
        strings.append(data[at:at + size])
        at += size
    return head, strings


# ---- Floats as the members have them: each operation is rounded to 32 bits -----------------------

def rounded(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


def of_bits(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


class Parameters:
    """Those of a run that has neither weight decay nor momentum at the replicas."""

    def __init__(self, snapshot: bytes) -> None:
        head, strings = decode(snapshot)
        self.round = head["round"]
        self.sizes = []
        for tensor in head["model"]:
            size = 1
            for side in tensor["shape"]:
                size *= side
            self.sizes.append(size)
        self.values = list(struct.unpack(f"<{sum(self.sizes)}f", strings[0]))

    def hash(self) -> str:
        return f"{wire.xxh64(struct.pack(f'<{len(self.values)}f', *self.values), self.round):016x}"

    def apply(self, commit: bytes) -> bool:
        """True where the commit had a hash, which was the same here."""
        head, strings = decode(commit)
        wire.require(head["round"] == self.round + 1, "wrong_order")
        if "parameters" in head:
            wire.require(head["parameters"] == self.hash(), "diverged")
        lr, share = of_bits(head["lr_bits"]), of_bits(head["share_bits"])
        alpha = -rounded(lr * share)
        factors = [of_bits(part["factor_bits"]) for part in head["parts"]] or [1.0]  # none with `select`
        wire.require(len(factors) == head["messages"] == len(strings) - 1, "bad_count")
        for scale, message in zip(factors, strings):
            factor = rounded(alpha * scale)
            for frame in wire.decode_message(message)["frames"]:
                first = sum(self.sizes[:frame["tensor"]])
                for index, bits in frame["entries"]:
                    self.values[first + index] = rounded(self.values[first + index] + rounded(factor * of_bits(bits)))
        self.round += 1
        return "parameters" in head


def varint(n: int) -> bytes:
    out = b""
    while n >= 128:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def whole_message(tensors: Sequence[Sequence[float]]) -> bytes:
    """A message that has every value of every tensor, in 32 bits (docs/format.md)."""
    frames = b""
    for number, values in enumerate(tensors):
        body = varint(number) + bytes([1 << 6 | 0 << 3 | 3]) + varint(len(values)) + struct.pack(f"<{len(values)}f", *values)
        frames += varint(len(body)) + body
    data = wire.MESSAGE_HEADER.pack(b"DGCM", 3, 0, 0, 0, len(tensors), 0, wire.MESSAGE_HEADER.size + len(frames) + 8) + frames
    return data + struct.pack("<Q", wire.xxh64(data))


def main() -> int:
    if sys.argv[1:2] == ["--doc-example"]:
        packets = [wire.doc_example(pathlib.Path(sys.argv[2]).read_text("utf-8"))]
    else:
        packets = [pathlib.Path(name).read_bytes() for name in sys.argv[1:]]
    for packet in packets:
        head, strings = decode(packet)
        print(json.dumps(head), [len(s) for s in strings])
    return 0


if __name__ == "__main__":
    sys.exit(main())
