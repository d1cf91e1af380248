#!/usr/bin/env python3
"""Reference decoder for messages (version 3) and state files (version 1).

Written from docs/format.md alone and sharing no code with the library, so that tests can use it as
an oracle: both must decode the same bytes to the same values, or reject them with the same code.
It favours being easy to compare with the document over speed.

    reference_decoder.py FILE...                        one JSON object per file and line
    reference_decoder.py --doc-example docs/format.md   the same for the document's worked example

Exit code: 0 everything was decoded, 1 something was rejected, 2 usage or I/O error.
"""

import argparse
import json
import math
import re
import struct
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

MESSAGE_HEADER = struct.Struct("<4sBBHIIQQ")
STATE_HEADER = struct.Struct("<4sBBHIIQI")
NOTICE = struct.Struct("<IIBBHI")
LONGEST_CAUSE = 512
TRAILER = 8
BLOCK = 256
FLT_MAX = (2.0 - 2.0**-23) * 2.0**127
VALUE_TYPES = ("fp32", "fp16", "bf16", "int8", "sign", "table2", "table4")
INDEX_CODINGS = ("runs", "rice", "bitmap", "dense")


class FormatError(Exception):
    """The input violates the format; `code` is the error name of the document."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code


def require(condition: bool, code: str, detail: str = "") -> None:
    if not condition:
        raise FormatError(code, detail)


# ---- XXH64 ---------------------------------------------------------------------------------------

MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _rotl(x: int, r: int) -> int:
    return ((x << r) | (x >> (64 - r))) & MASK


def _round(acc: int, lane: int) -> int:
    return _rotl((acc + lane * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes, seed: int = 0) -> int:
    stripes_end = len(data) & ~31
    if stripes_end:
        a, b, c, d = (seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK
        for w, x, y, z in struct.iter_unpack("<4Q", memoryview(data)[:stripes_end]):
            a, b, c, d = _round(a, w), _round(b, x), _round(c, y), _round(d, z)
        h = (_rotl(a, 1) + _rotl(b, 7) + _rotl(c, 12) + _rotl(d, 18)) & MASK
        for acc in (a, b, c, d):
            h = ((h ^ _round(0, acc)) * P1 + P4) & MASK
    else:
        h = (seed + P5) & MASK
    h = (h + len(data)) & MASK
    pos = stripes_end
    while pos + 8 <= len(data):
        h ^= _round(0, int.from_bytes(data[pos : pos + 8], "little"))
        h = (_rotl(h, 27) * P1 + P4) & MASK
        pos += 8
    if pos + 4 <= len(data):
        h ^= int.from_bytes(data[pos : pos + 4], "little") * P1 & MASK
        h = (_rotl(h, 23) * P2 + P3) & MASK
        pos += 4
    for byte in data[pos:]:
        h = _rotl(h ^ (byte * P5 & MASK), 11) * P1 & MASK
    h = (h ^ (h >> 33)) * P2 & MASK
    h = (h ^ (h >> 29)) * P3 & MASK
    return h ^ (h >> 32)


def check_checksum(data: bytes) -> None:
    stored = int.from_bytes(data[-TRAILER:], "little")
    require(xxh64(data[:-TRAILER]) == stored, "checksum_mismatch")


# ---- Reading -------------------------------------------------------------------------------------

class Reader:
    """A cursor over data[pos:end]; reading past the end is `truncated`."""

    def __init__(self, data: bytes, pos: int, end: int) -> None:
        self.data, self.pos, self.end = data, pos, end

    def left(self) -> int:
        return self.end - self.pos

    def take(self, size: int) -> bytes:
        require(size <= self.left(), "truncated")
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def array(self, fmt: str, count: int) -> Tuple[Any, ...]:
        # The size is checked before anything of that size is made: counts come from the input.
        return struct.unpack(f"<{count}{fmt}", self.take(struct.calcsize("<" + fmt) * count))

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                require(byte != 0 or shift == 0, "bad_varint", "not minimal")
                require(value < 1 << 32, "bad_varint", "2^32 or more")
                return value
        raise FormatError("bad_varint", "longer than 5 bytes")


def bit_string(data: bytes) -> str:
    """The bits as text, bit 0 of byte 0 first: searching and slicing text is fast in Python."""
    return bin(int.from_bytes(data, "little"))[2:].zfill(8 * len(data))[::-1] if data else ""


# ---- Values: each decoder returns the binary32 patterns of k values ------------------------------

def check_finite(patterns: Tuple[int, ...], exponent_mask: int) -> None:
    require(all(p & exponent_mask != exponent_mask for p in patterns), "nonfinite_value")


def round_to_float_bits(exact: List[float]) -> List[int]:
    # All products of the format are exact in a double and none is beyond FLT_MAX, so that this
    # conversion is the one rounding the document asks for, results subnormal in binary32 included.
    return list(struct.unpack(f"<{len(exact)}I", struct.pack(f"<{len(exact)}f", *exact)))


def float_scales(r: Reader, blocks: int, limit: float) -> Tuple[float, ...]:
    scales = r.array("f", blocks)
    # NaN fails the comparison; copysign tells -0 from 0.
    require(all(s <= limit and math.copysign(1.0, s) > 0 for s in scales), "bad_scale")
    return scales


def values_fp32(r: Reader, k: int, blocks: int) -> List[int]:
    bits = r.array("I", k)
    check_finite(bits, 0x7F800000)
    return list(bits)


def values_fp16(r: Reader, k: int, blocks: int) -> List[int]:
    exponents = r.array("b", blocks)
    require(all(e <= 112 for e in exponents), "bad_scale")
    raw = r.take(2 * k)
    check_finite(struct.unpack(f"<{k}H", raw), 0x7C00)
    factors = [2.0**e for e in exponents]
    halves = struct.unpack(f"<{k}e", raw)
    return round_to_float_bits([h * factors[i // BLOCK] for i, h in enumerate(halves)])


def values_bf16(r: Reader, k: int, blocks: int) -> List[int]:
    bits = r.array("H", k)
    check_finite(bits, 0x7F80)
    return [b << 16 for b in bits]


def values_int8(r: Reader, k: int, blocks: int) -> List[int]:
    scales = float_scales(r, blocks, FLT_MAX / 128)
    quantized = r.array("b", k)
    require(-128 not in quantized, "reserved_bits")
    return round_to_float_bits([q * scales[i // BLOCK] for i, q in enumerate(quantized)])


def values_sign(r: Reader, k: int, blocks: int) -> List[int]:
    scales = float_scales(r, blocks, FLT_MAX)
    signs = bit_string(r.take((k + 7) // 8))
    require("1" not in signs[k:], "reserved_bits", "padding")
    signed = [(s, -s) for s in scales]
    return round_to_float_bits([signed[i // BLOCK][signs[i] == "1"] for i in range(k)])


def values_table(r: Reader, k: int, blocks: int, bits: int) -> List[int]:
    levels = 1 << (bits - 1)
    tables = [r.array("H", levels) for _ in range(blocks)]
    require(all(t[-1] <= 0x7F7F and list(t) == sorted(t) for t in tables), "bad_scale")
    stream = bit_string(r.take((k * bits + 7) // 8))
    require("1" not in stream[k * bits:], "reserved_bits", "padding")
    patterns = []
    for i in range(k):
        code = int(stream[i * bits : (i + 1) * bits][::-1], 2)
        magnitude = tables[i // BLOCK][code % levels]
        patterns.append((magnitude | (0x8000 if code >= levels else 0)) << 16)
    return patterns


def values_table2(r: Reader, k: int, blocks: int) -> List[int]:
    return values_table(r, k, blocks, 2)


def values_table4(r: Reader, k: int, blocks: int) -> List[int]:
    return values_table(r, k, blocks, 4)


VALUE_DECODERS: Tuple[Callable[[Reader, int, int], List[int]], ...] = (
    values_fp32, values_fp16, values_bf16, values_int8, values_sign, values_table2,
    values_table4)


def value_section_size(value_type: int, k: int, blocks: int) -> int:
    return (4 * k, blocks + 2 * k, 2 * k, 4 * blocks + k, 4 * blocks + (k + 7) // 8,
            4 * blocks + (2 * k + 7) // 8, 16 * blocks + (4 * k + 7) // 8)[value_type]


# ---- Positions: each decoder returns the k element indices ---------------------------------------

def positions_runs(section: bytes, k: int, n: int) -> List[int]:
    r = Reader(section, 0, len(section))
    indices: List[int] = []
    position = 0  # the element right after the last one skipped or given
    while len(indices) < k:
        word = int.from_bytes(r.take(2), "little")
        position += word
        require(position < n, "index_out_of_range")
        if word < 0xFFFF:
            indices.append(position)
            position += 1
    require(r.left() == 0, "trailing_bytes")
    return indices


def positions_rice(section: bytes, k: int, n: int) -> List[int]:
    bits = bit_string(section)
    at = 0

    def number(width: int) -> int:
        nonlocal at
        require(at + width <= len(bits), "truncated")
        at += width
        return int("0" + bits[at - width : at][::-1], 2)  # "0": a width of 0 is the number 0

    indices: List[int] = []
    position = 0
    b = 0
    for i in range(k):
        if i % BLOCK == 0:
            b = number(5)
        zero = bits.find("0", at, at + 32)
        if zero >= 0:
            quotient = zero - at
            at = zero + 1
            gap = (quotient << b) | number(b)
        else:
            number(32)  # the escape; `truncated` if the stream ended among fewer one-bits
            gap = number(32)
        position += gap
        indices.append(position)
        position += 1
        if i % BLOCK == BLOCK - 1 or i == k - 1:  # positions grow: the last of a block speaks for all
            require(position <= n, "index_out_of_range")
    require(len(bits) - at < 8, "trailing_bytes")
    require("1" not in bits[at:], "reserved_bits", "padding")
    return indices


def positions_bitmap(section: bytes, k: int, n: int) -> List[int]:
    require(len(section) >= (n + 7) // 8, "truncated")
    require(len(section) <= (n + 7) // 8, "trailing_bytes")
    bits = bit_string(section)
    require(bits.count("1", 0, n) == k, "bad_count")
    require("1" not in bits[n:], "reserved_bits", "padding")
    return [match.start() for match in re.finditer("1", bits)]


def positions_dense(section: bytes, k: int, n: int) -> List[int]:
    require(not section, "trailing_bytes")
    return list(range(n))


POSITION_DECODERS: Tuple[Callable[[bytes, int, int], List[int]], ...] = (
    positions_runs, positions_rice, positions_bitmap, positions_dense)


# ---- Messages ------------------------------------------------------------------------------------

def decode_frame(r: Reader, previous_tensor: int) -> Dict[str, Any]:
    body_length = r.varint()
    require(body_length <= r.left(), "bad_length", "frame longer than the message")
    body = Reader(r.data, r.pos, r.pos + body_length)
    r.pos = body.end

    tensor = body.varint()
    codes = body.byte()
    coding, value_type, version = codes & 7, codes >> 3 & 7, codes >> 6
    require(version == 1, "bad_version", "frame")
    require(value_type < len(VALUE_TYPES), "bad_value_type")
    require(coding < len(INDEX_CODINGS), "bad_index_coding")
    n = body.varint()
    k = n if INDEX_CODINGS[coding] == "dense" else body.varint()
    require(1 <= k <= n, "bad_count")

    # The size of the whole section comes before any of its contents in the order of checks.
    blocks = (k + BLOCK - 1) // BLOCK
    require(value_section_size(value_type, k, blocks) <= body.left(), "truncated", "values")
    values = VALUE_DECODERS[value_type](body, k, blocks)
    indices = POSITION_DECODERS[coding](body.take(body.left()), k, n)
    require(tensor > previous_tensor, "frame_order")
    return {"tensor": tensor, "elements": n,
            "values": VALUE_TYPES[value_type], "indices": INDEX_CODINGS[coding],
            "entries": [[index, value] for index, value in zip(indices, values)]}


def decode_notice(r: Reader) -> Dict[str, Any]:
    bucket, tensors, flags, reserved, code, cause_size = NOTICE.unpack(r.take(NOTICE.size))
    require(flags < 16, "reserved_bits", "flags of the notice")
    require(reserved == 0, "reserved_bits", "notice")
    failed = flags & 8 != 0
    require(cause_size <= LONGEST_CAUSE and (failed or cause_size == 0), "bad_length", "cause")
    require(failed == (code != 0), "bad_count", "a failure has a code, and nothing else has one")
    hash_size = 8 if flags & 4 else 0
    require(hash_size + (tensors + 7) // 8 + cause_size <= r.left(), "truncated", "notice")
    parameters = int.from_bytes(r.take(hash_size), "little") if hash_size else None
    bits = bit_string(r.take((tensors + 7) // 8))
    require("1" not in bits[tensors:], "reserved_bits", "padding of the notice")
    notice: Dict[str, Any] = {"bucket": bucket, "stop": flags & 1 != 0,
                              "nonfinite": flags & 2 != 0, "parameters": parameters,
                              "present": bits[:tensors], "code": code if failed else None}
    notice["cause"] = r.take(cause_size).decode("utf-8", "backslashreplace") if failed else None
    return notice


def header_of(data: bytes, magic: bytes, layout: struct.Struct, expected: int) -> Any:
    """The fields after magic and version, which are checked."""
    require(len(data) < 4 or data[:4] == magic, "bad_magic")
    require(len(data) >= layout.size + TRAILER, "truncated")
    _, version, *fields = layout.unpack_from(data)
    require(version == expected, "bad_version")
    return fields


def decode_message(data: bytes) -> Dict[str, Any]:
    flags, sender, schema, frame_count, step, length = header_of(
        data, b"DGCM", MESSAGE_HEADER, 3)
    require(length >= MESSAGE_HEADER.size + TRAILER, "bad_length")
    require(len(data) >= length, "truncated")
    require(len(data) <= length, "trailing_bytes")
    check_checksum(data)
    require(flags < 2, "reserved_bits")

    r = Reader(data, MESSAGE_HEADER.size, length - TRAILER)
    notice = decode_notice(r) if flags & 1 else None
    if notice is not None and notice["code"] is not None:
        require(frame_count == 0, "bad_count", "frames after a failure")
    frames: List[Dict[str, Any]] = []
    for _ in range(frame_count):
        frames.append(decode_frame(r, frames[-1]["tensor"] if frames else -1))
    require(r.left() == 0, "trailing_bytes", "after the last frame")
    return {"kind": "message", "step": step, "sender": sender, "schema": schema,
            "bytes": length, "notice": notice, "frames": frames}


# ---- State files ---------------------------------------------------------------------------------

def decode_tensor_record(r: Reader) -> Tuple[Dict[str, Any], int]:
    """Returns the tensor without its floats, and its number of elements."""
    name = r.take(r.array("H", 1)[0]).decode("utf-8", "backslashreplace")
    flags = r.byte()
    require(flags & ~1 == 0, "reserved_bits", "flags of a tensor")
    shape = r.array("Q", r.byte())
    elements = 1  # also that of a tensor without dimensions
    for dimension in shape:
        elements *= dimension
        require(max(dimension, elements) < 1 << 32, "bad_state", "too many elements")
    return {"name": name, "shape": list(shape), "dense": flags == 1}, elements


def finite_floats(r: Reader, count: int) -> List[int]:
    bits = r.array("I", count)
    check_finite(bits, 0x7F800000)
    return list(bits)


def decode_state(data: bytes) -> Dict[str, Any]:
    flags, reserved, rank, workers, step, tensor_count = header_of(
        data, b"DGCS", STATE_HEADER, 1)
    check_checksum(data)
    require(flags & ~1 == 0, "reserved_bits", "flags")
    require(reserved == 0, "reserved_bits")
    require(workers > rank, "bad_state", "rank without a place among the workers")

    r = Reader(data, STATE_HEADER.size, len(data) - TRAILER)
    records = [decode_tensor_record(r) for _ in range(tensor_count)]
    has_velocity = flags == 1
    for tensor, elements in records:
        tensor["velocity"] = finite_floats(r, elements) if has_velocity else None
        tensor["residual"] = finite_floats(r, elements)
    require(r.left() == 0, "trailing_bytes")
    return {"kind": "state", "rank": rank, "workers": workers, "step": step,
            "has_velocity": has_velocity, "tensors": [tensor for tensor, _ in records]}


# ---- Command line --------------------------------------------------------------------------------

def decode_any(data: bytes) -> Dict[str, Any]:
    return decode_state(data) if data[:4] == b"DGCS" else decode_message(data)


def doc_example(text: str) -> bytes:
    block = re.search(r"^```hex\s*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError("no ```hex block")
    return bytes.fromhex(block.group(1))


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Decode messages and state files to JSON lines.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="a message or state file")
    parser.add_argument("--doc-example", metavar="DOC", help="decode the hex block of DOC")
    args = parser.parse_args(argv)
    if not args.files and args.doc_example is None:
        parser.error("nothing to decode")  # exits with code 2

    inputs = [(path, False) for path in args.files]
    if args.doc_example is not None:
        inputs.insert(0, (args.doc_example, True))
    status = 0
    for path, is_document in inputs:
        try:
            with open(path, "rb") as file:
                data = file.read()
            if is_document:
                data = doc_example(data.decode("utf-8"))
        except (OSError, ValueError) as error:
            print(f"{parser.prog}: {path}: {error}", file=sys.stderr)
            status = 2
            continue
        result: Dict[str, Any] = {"file": path}
        try:
            result.update(decode_any(data))
        except FormatError as error:
            result["error"] = error.code
            status = max(status, 1)
        print(json.dumps(result))
    return status


if __name__ == "__main__":
    sys.exit(main())
