# mypy: ignore-errors
"""Codings of values and of gaps in the kernels, bit for bit those of libdgc: src/wire/values.cpp and
src/wire/rice.cpp. docs/format.md has the bits. Shifts and comparisons are of integers; of floats
each operation is one of libdgc's."""

import triton
import triton.language as tl

from ._triton_select import INFINITY_BITS, magnitude

PART = tl.constexpr(256)  # entries that share a scale, and a parameter of Rice
# Value types, as in docs/format.md.
FP32 = tl.constexpr(0)
FP16 = tl.constexpr(1)
BF16 = tl.constexpr(2)
INT8 = tl.constexpr(3)
SIGN = tl.constexpr(4)

ESCAPE = tl.constexpr(32)  # quotients from here on are written in the long form
PARAMETER_BITS = tl.constexpr(5)

LARGEST_HALF = tl.constexpr(0x477FE000)  # 65504
LARGEST_INT8_SCALE = tl.constexpr(0x7BFFFFFF)  # FLT_MAX / 128


@triton.jit
def float_of(bits):
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def power_of_two(e):
    normal = tl.where(e >= -126, e + 127, 0) << 23
    subnormal = 1 << tl.where(e >= -126, 0, e + 149)
    return float_of(tl.where(e >= -126, normal, subnormal))


@triton.jit
def half_exponent(largest):
    """Of a block whose largest magnitude has these bits. Subnormal ones are below the lowest."""
    e = (largest >> 23) - 127 - 14
    return tl.where(largest == 0, 0, tl.minimum(tl.maximum(e, -128), 112))


@triton.jit
def half_of(x, e):
    back = -e
    part = tl.where(back >= 0, back >> 1, -((-back) >> 1))  # towards zero
    x = x * power_of_two(part)
    x = x * power_of_two(back - part)
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 16) & 0x8000
    m = tl.minimum(bits & 0x7FFFFFFF, LARGEST_HALF)
    aligned = float_of(m) + 0.5
    subnormal = aligned.to(tl.int32, bitcast=True) - 0x3F000000
    rounded = m + 0xFFF + ((m >> 13) & 1)
    normal = (rounded - (112 << 23)) >> 13
    return sign | tl.where(m < 0x38800000, subnormal, normal)


@triton.jit
def from_half(half, e):
    bits = ((half & 0x8000) << 16) | ((half & 0x7FFF) << 13)
    x = float_of(bits) * power_of_two(e - e + 112)
    return x * power_of_two(e)


@triton.jit
def bf16_of(x):
    bits = x.to(tl.int32, bitcast=True)
    m = bits & 0x7FFFFFFF
    m = (m + 0x7FFF + ((m >> 16) & 1)) >> 16
    return ((bits >> 16) & 0x8000) | tl.minimum(m, 0x7F7F)


@triton.jit
def from_bf16(code):
    return float_of(code << 16)


@triton.jit
def int8_scale(largest):
    """The bits of the scale: rounded quotient, within the smallest float and the largest scale."""
    quotient = tl.div_rn(float_of(largest), (largest - largest + 127).to(tl.float32))
    bits = tl.minimum(tl.maximum(magnitude(quotient), 1), LARGEST_INT8_SCALE)
    return tl.where(largest == 0, 0, bits)


@triton.jit
def int8_of(x, scale):
    """`scale` as bits."""
    divisor = float_of(tl.where(scale == 0, 0x3F800000, scale)) + tl.zeros_like(x)
    near = tl.div_rn(x, divisor)
    near = tl.where(near > 127.0, 127.0, near)
    near = tl.where(near < -127.0, -127.0, near)
    near = near + 12582912.0
    near = near - 12582912.0
    return tl.where(scale == 0, 0, near.to(tl.int32))


@triton.jit
def from_int8(code, scale):
    return code.to(tl.float32) * float_of(scale)


@triton.jit
def mean_magnitude(values, entries):
    """The bits of the mean of some magnitudes, which are added one by one, as libdgc does."""
    total = (entries - entries).to(tl.float64)
    for i in range(0, entries):
        total += tl.abs(tl.load(values + i)).to(tl.float64)
    return (total / entries.to(tl.float64)).to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def code_values(x, largest, source, entries, TYPE: tl.constexpr):
    """Codes of a part, its scale, and what the codes decode to. `source`: where x is from."""
    scale = largest - largest
    if TYPE == FP32:
        code = x.to(tl.int32, bitcast=True)
        decoded = x
    elif TYPE == FP16:
        scale = half_exponent(largest)
        code = half_of(x, scale)
        decoded = from_half(code, scale)
    elif TYPE == BF16:
        code = bf16_of(x)
        decoded = from_bf16(code)
    elif TYPE == INT8:
        scale = int8_scale(largest)
        code = int8_of(x, scale)
        decoded = from_int8(code, scale)
    else:
        scale = mean_magnitude(source, entries)
        code = (x.to(tl.int32, bitcast=True) >> 31) & 1
        decoded = float_of(scale | (code << 31))
    return code, scale, decoded


@triton.jit
def vanishes(smallest, largest, TYPE: tl.constexpr):
    """Whether the smallest magnitude becomes zero beside the largest: both as bits."""
    x = float_of(smallest)
    if TYPE == FP16:
        e = half_exponent(largest)
        gone = from_half(half_of(x, e), e) == 0.0
    elif TYPE == BF16:
        gone = (bf16_of(x) & 0x7FFF) == 0
    elif TYPE == INT8:
        gone = int8_of(x, int8_scale(largest)) == 0
    else:
        gone = smallest == 0
    return gone


@triton.jit
def value_bytes(entries, TYPE: tl.constexpr):
    parts = (entries + PART - 1) // PART
    if TYPE == FP32:
        size = entries * 4
    elif TYPE == FP16:
        size = entries * 2 + parts
    elif TYPE == BF16:
        size = entries * 2
    elif TYPE == INT8:
        size = entries + parts * 4
    else:
        size = (entries + 7) // 8 + parts * 4
    return size


@triton.jit
def widths(gap, b):
    """Bits of a gap's code."""
    quotient = gap >> b
    return tl.where(quotient < ESCAPE, quotient + 1 + b, ESCAPE + 32)


@triton.jit
def rice_bits(gap, there, b):
    return tl.sum(tl.where(there, widths(gap, b), 0), axis=0)


@triton.jit
def rice_code(gap, b):
    """Lowest bit first: ones, a zero, the low bits."""
    quotient = gap >> b
    low = (gap & ((1 << b) - 1)).to(tl.int64)
    short = ((2 * low + 1) << tl.minimum(quotient, ESCAPE).to(tl.int64)) - 1
    long = (gap.to(tl.int64) << 32) | 0xFFFFFFFF
    return tl.where(quotient < ESCAPE, short, long)


@triton.jit
def best_rice(gap, there, total, entries):
    """From the parameter of the mean gap, `total` over `entries`, to the nearest minimum, down and
    then up."""
    start = 0
    for i in range(1, 32):
        start = tl.where(total >= entries.to(tl.int64) << i, i, start)
    best = start
    bits = rice_bits(gap, there, start)
    b = start - 1
    going = b >= 0
    while going:
        cost = rice_bits(gap, there, b)
        better = cost < bits
        best = tl.where(better, b, best)
        bits = tl.where(better, cost, bits)
        b -= 1
        going = better & (b >= 0)
    b = start + 1
    going = (best == start) & (b < 32)
    while going:
        cost = rice_bits(gap, there, b)
        better = cost < bits
        best = tl.where(better, b, best)
        bits = tl.where(better, cost, bits)
        b += 1
        going = better & (b < 32)
    return best, bits
