# mypy: ignore-errors
"""The fused kernels: from the entries that are sent to the bytes of a message.

    encode       values and gaps of 256 entries: a *part*                       parts
    plan         a tensor's sections: which coding, how many bytes              rows
    layout       where they go in the outbox                                    one program
    pack         the bytes; takes what is sent out of v and u                   parts
    ship         from the outbox to memory of the host                          tiles

The outbox is what crosses to the host: 4 bytes that say how many bytes there are, 4 that say what
is wrong, 4 for each row, and then the rows' sections, one after the other: those of the frame in the
message. Where another coding than Rice is smaller, entries would decode to zero, or fewer than k are
left, the host codes the tensor. Then the section has positions (unless everything is sent) and values
as they are, of `entries` = what the row's 4 bytes say, with the top bit set.
"""

import triton
import triton.language as tl

from ._triton_select import (
    BAD_RESIDUAL,
    COLUMNS,
    ELEMENTS,
    ENTRIES,
    FINE,
    FIRST_ENTRY,
    FIRST_PART,
    INFINITY_BITS,
    MOST,
    PARTS,
    RESIDUAL,
    SELECTED,
    VELOCITY,
    WHOLE,
    cell,
    floats_at,
    magnitude,
)
from ._triton_values import (
    BF16,
    FP16,
    FP32,
    INT8,
    PARAMETER_BITS,
    PART,
    SIGN,
    best_rice,
    code_values,
    rice_code,
    value_bytes,
    vanishes,
    widths,
)

# Of `found`: whether the device codes the row; where its section is; bytes of values, and of all.
CODED = tl.constexpr(5)
OFFSET = tl.constexpr(6)
VALUE_BYTES = tl.constexpr(7)
BYTES = tl.constexpr(8)
BAD = tl.constexpr(9)

# Of `parts`: smallest and largest magnitude, the scale, b, bits of the codes with b, words of runs
# that have no entry; then the bit where the codes begin, as 64 bits.
FACTS = tl.constexpr(8)
SMALLEST = tl.constexpr(0)
LARGEST = tl.constexpr(1)
SCALE = tl.constexpr(2)
RICE = tl.constexpr(3)
BITS = tl.constexpr(4)
SKIPS = tl.constexpr(5)

HEAD = tl.constexpr(8)  # bytes before the rows'


@triton.jit
def entries_of(rows, found, row, part):
    """First entry of a part, and how many it has."""
    begin = (part - cell(rows, row, FIRST_PART)) * PART
    left = cell(found, row, SELECTED) - begin
    return cell(rows, row, FIRST_ENTRY) + begin, tl.minimum(tl.maximum(left, 0), PART).to(tl.int32)


@triton.jit
def gaps_of(positions, first, row_first, lane, there):
    """Elements between an entry and the one before it."""
    position = tl.load(positions + first + lane, mask=there, other=0)
    follows = there & (first + lane > row_first)
    before = tl.load(positions + first + lane - 1, mask=follows, other=-1)
    return tl.where(there, position - before - 1, 0)


@triton.jit
def encode(
    rows,
    found,
    part_rows,
    status,
    positions,
    values,
    codes,
    decoded,
    places,
    parts,
    SPARSE: tl.constexpr,
    DENSE: tl.constexpr,
):
    if tl.load(status) != FINE:
        return
    part = tl.program_id(0)
    row = tl.load(part_rows + part)
    first, entries = entries_of(rows, found, row, part)
    lane = tl.arange(0, PART)
    there = lane < entries
    x = tl.load(values + first + lane, mask=there, other=0.0)
    m = magnitude(x)
    facts = parts + part.to(tl.int64) * FACTS
    largest = tl.max(m, axis=0)
    tl.store(facts + SMALLEST, tl.min(tl.where(there, m, MOST), axis=0))
    tl.store(facts + LARGEST, largest)
    tl.store(facts + RICE, 0)
    tl.store(facts + BITS, 0)
    tl.store(facts + SKIPS, 0)
    if entries == 0:
        return
    if cell(rows, row, WHOLE) != 0:
        code, scale, back = code_values(x, largest, values + first, entries, DENSE)
        tl.store(codes + first + lane, code, mask=there)
        tl.store(decoded + first + lane, back, mask=there)
        tl.store(facts + SCALE, scale)
        return
    code, scale, back = code_values(x, largest, values + first, entries, SPARSE)
    tl.store(codes + first + lane, code, mask=there)
    tl.store(decoded + first + lane, back, mask=there)
    tl.store(facts + SCALE, scale)

    gap = gaps_of(positions, first, cell(rows, row, FIRST_ENTRY), lane, there)
    b, bits = best_rice(gap, there, tl.sum(gap.to(tl.int64), axis=0), entries)
    width = tl.where(there, widths(gap, b), 0)
    tl.store(places + first + lane, tl.cumsum(width, 0) - width + PARAMETER_BITS, mask=there)
    tl.store(facts + RICE, b)
    tl.store(facts + BITS, bits + PARAMETER_BITS)
    tl.store(facts + SKIPS, tl.sum(gap // 65535, axis=0))


@triton.jit
def is_coded(
    rows, row, entries, smallest, largest, rice, skips, TYPE: tl.constexpr, RULE: tl.constexpr
):
    """Whether the device codes a tensor that is not sent whole: all that was selected travels, and
    the coding asked for is Rice's, or the smallest is. RULE: 0 for auto, 1 for Rice, 2 for others.
    """
    elements = cell(rows, row, ELEMENTS)
    coded = (entries == cell(rows, row, ENTRIES)) & (vanishes(smallest, largest, TYPE) == 0)
    if RULE == 0:
        coded = coded & (2 * (entries + skips) >= rice) & ((elements + 7) // 8 >= rice)
        if TYPE != SIGN:
            coded = coded & (value_bytes(elements, TYPE) > value_bytes(entries, TYPE) + rice)
    if RULE == 2:
        coded = coded & (entries < 0)
    # The outbox has room for 8 bytes an entry, and for 8 more.
    return coded & (value_bytes(entries, TYPE) + rice <= 8 * entries + 8)


@triton.jit
def plan(
    rows,
    found,
    status,
    parts,
    begins,
    SPARSE: tl.constexpr,
    DENSE: tl.constexpr,
    RULE: tl.constexpr,
    TILE: tl.constexpr,
):
    if tl.load(status) != FINE:
        return
    row = tl.program_id(0)
    entries = cell(found, row, SELECTED)
    first = cell(rows, row, FIRST_PART)
    count = cell(rows, row, PARTS).to(tl.int32)
    lane = tl.arange(0, TILE)
    smallest = 0x7FFFFFFF
    largest = 0
    bits = entries - entries
    skips = entries - entries
    for begin in range(0, count, TILE):
        at = begin + lane
        facts = parts + (first + at) * FACTS
        there = at < count
        low = tl.load(facts + SMALLEST, mask=there, other=0x7FFFFFFF)
        smallest = tl.minimum(smallest, tl.min(low, axis=0))
        largest = tl.maximum(largest, tl.max(tl.load(facts + LARGEST, mask=there, other=0), axis=0))
        some = tl.load(facts + BITS, mask=there, other=0).to(tl.int64)
        tl.store(begins + first + at, bits + tl.cumsum(some, 0) - some, mask=there)
        bits += tl.sum(some, axis=0)
        skips += tl.sum(tl.load(facts + SKIPS, mask=there, other=0).to(tl.int64), axis=0)
    smallest = tl.minimum(smallest, largest)  # where nothing was selected
    mine = found + row * COLUMNS
    tl.store(mine + BAD, (largest >= INFINITY_BITS).to(tl.int64))
    if cell(rows, row, WHOLE) != 0:
        coded = vanishes(smallest, largest, DENSE) == 0
        sections = value_bytes(entries, DENSE)
        tl.store(mine + CODED, coded.to(tl.int64))
        tl.store(mine + VALUE_BYTES, sections)
        tl.store(mine + BYTES, tl.where(coded, sections, 4 * entries))
    else:
        rice = (bits + 7) // 8
        coded = is_coded(rows, row, entries, smallest, largest, rice, skips, SPARSE, RULE)
        sections = value_bytes(entries, SPARSE)
        tl.store(mine + CODED, coded.to(tl.int64))
        tl.store(mine + VALUE_BYTES, sections)
        tl.store(mine + BYTES, tl.where(coded, sections + rice, 8 * entries))


@triton.jit
def layout(found, status, outbox, count, TILE: tl.constexpr):
    """`outbox` as 32-bit words."""
    lane = tl.arange(0, TILE)
    wrong = tl.load(status)
    total = 4 * count.to(tl.int64) + HEAD
    if wrong == FINE:
        worst = total - total
        for begin in range(0, count, TILE):
            row = begin + lane
            there = row < count
            mine = found + row * COLUMNS
            size = tl.load(mine + BYTES, mask=there, other=0)
            coded = tl.load(mine + CODED, mask=there, other=0)
            values = tl.load(mine + VALUE_BYTES, mask=there, other=0)
            entries = tl.load(mine + SELECTED, mask=there, other=0)
            tl.store(mine + OFFSET, total + tl.cumsum(size, 0) - size, mask=there)
            says = tl.where(
                coded != 0, (size - values).to(tl.int32), entries.to(tl.int32) | (-2147483647 - 1)
            )
            tl.store(outbox + 2 + row, says, mask=there)
            total += tl.sum(size, axis=0)
            worst = tl.maximum(worst, tl.max(tl.load(mine + BAD, mask=there, other=0), axis=0))
        wrong = tl.where(worst != 0, BAD_RESIDUAL, FINE)
    tl.store(outbox, tl.where(wrong == FINE, total, HEAD).to(tl.int32))
    tl.store(outbox + 1, wrong)
    tl.store(status + 1, wrong)


@triton.jit
def put_bytes(to, words, use, EACH: tl.constexpr):
    """The low bytes of a part's words: at any address."""
    byte = tl.arange(0, EACH)
    parts = (words[:, None] >> (8 * byte)[None, :]) & 0xFF
    lane = tl.arange(0, PART)
    at = to + (lane * EACH)[:, None] + byte[None, :]
    tl.store(at, parts.to(tl.uint8), mask=use[:, None] & (byte[None, :] >= 0))


@triton.jit
def put_values(to, first, part_of_row, parts_of_row, entries, codes, scale, TYPE: tl.constexpr):
    """A part's scale and codes; `to` is where the section begins."""
    lane = tl.arange(0, PART)
    there = lane < entries
    code = tl.load(codes + first + lane, mask=there, other=0)
    four = tl.arange(0, 4)
    if TYPE == FP32:
        put_bytes(to + part_of_row * PART * 4, code, there, 4)
    elif TYPE == FP16:
        tl.store(to + part_of_row, (scale & 0xFF).to(tl.uint8))
        put_bytes(to + parts_of_row + part_of_row * PART * 2, code, there, 2)
    elif TYPE == BF16:
        put_bytes(to + part_of_row * PART * 2, code, there, 2)
    else:
        tl.store(to + part_of_row * 4 + four, ((scale >> (8 * four)) & 0xFF).to(tl.uint8))
        if TYPE == INT8:
            at = to + parts_of_row * 4 + part_of_row * PART + lane
            tl.store(at, (code & 0xFF).to(tl.uint8), mask=there)
        else:
            bit = tl.reshape(lane & 7, (PART // 8, 8))
            bits = tl.sum(tl.reshape(code, (PART // 8, 8)) << bit, axis=1)
            byte = tl.arange(0, PART // 8)
            at = to + parts_of_row * 4 + part_of_row * (PART // 8) + byte
            tl.store(at, bits.to(tl.uint8), mask=byte < (entries + 7) // 8)


@triton.jit
def in_word(code, place, word):
    """The bits of codes that begin at `place` which are in 32-bit words, as columns. Codes do not
    overlap: adding what rows give is or-ing it. (Codes have 63 bits at most: none is negative.)"""
    ahead = place[:, None] - 32 * word[None, :]
    near = (ahead > -64) & (ahead < 32)
    up = code[:, None] << tl.minimum(tl.maximum(ahead, 0), 31)
    down = code[:, None] >> tl.minimum(tl.maximum(-ahead, 0), 63)
    return tl.sum(tl.where(near, tl.where(ahead >= 0, up, down) & 0xFFFFFFFF, 0), axis=0)


@triton.jit
def put_rice(
    to,
    rows,
    found,
    row,
    part,
    size,
    positions,
    places,
    parts,
    begins,
    WORDS: tl.constexpr,
):
    """The 32-bit words that begin within a part's codes. The last of them has the first codes of
    the next part, too."""
    row_first = cell(rows, row, FIRST_ENTRY)
    first, entries = entries_of(rows, found, row, part)
    lane = tl.arange(0, PART)
    there = lane < entries
    b = tl.load(parts + part.to(tl.int64) * FACTS + RICE)
    begin = tl.load(begins + part)
    end = begin + tl.load(parts + part.to(tl.int64) * FACTS + BITS)
    code = rice_code(gaps_of(positions, first, row_first, lane, there), b)
    place = begin + tl.load(places + first + lane, mask=there, other=0)
    code = tl.where(there, code, 0)

    # 31 bits can have the codes of 26 entries, after the parameter.
    last = part + 1 >= cell(rows, row, FIRST_PART) + cell(rows, row, PARTS)
    next_part = tl.where(last, part, part + 1)
    next_first, next_entries = entries_of(rows, found, row, next_part)
    next_entries = tl.where(last, 0, next_entries)
    few = tl.arange(0, 32)
    next_there = few < next_entries
    next_b = tl.load(parts + next_part.to(tl.int64) * FACTS + RICE)
    next_code = rice_code(gaps_of(positions, next_first, row_first, few, next_there), next_b)
    next_place = end + tl.load(places + next_first + few, mask=next_there, other=0)
    next_code = tl.where(next_there, next_code, 0)

    # Both parameters, as codes of 5 bits.
    two = tl.arange(0, 2)
    parameter = tl.where(two == 0, b, tl.where(next_entries > 0, next_b, 0)).to(tl.int64)
    parameter_place = tl.where(two == 0, begin, end)

    first_word = (begin + 31) // 32
    last_word = (end + 31) // 32
    for some in range(first_word, last_word, WORDS):
        word = some + tl.arange(0, WORDS)
        bits = in_word(code, place, word)
        bits += in_word(next_code, next_place, word)
        bits += in_word(parameter, parameter_place, word)
        byte = tl.arange(0, 4)
        at = 4 * word[:, None] + byte[None, :]
        out = (bits[:, None] >> (8 * byte)[None, :].to(tl.int64)) & 0xFF
        use = (word < last_word)[:, None] & (at < size)
        tl.store(to + at, out.to(tl.uint8), mask=use)


@triton.jit
def take_out(rows, row, positions, decoded, old_v, first, entries, MASKING: tl.constexpr):
    """What was sent leaves v, and its momentum u; the rounding error stays in v."""
    lane = tl.arange(0, PART)
    there = lane < entries
    element = tl.load(positions + first + lane, mask=there, other=0)
    v = tl.load(old_v + first + lane, mask=there, other=0.0)
    v = v - tl.load(decoded + first + lane, mask=there, other=0.0)
    tl.store(floats_at(cell(rows, row, RESIDUAL)) + element, v, mask=there)
    if MASKING:
        masked = there & (cell(rows, row, WHOLE) == 0)
        tl.store(floats_at(cell(rows, row, VELOCITY)) + element, tl.zeros_like(v), mask=masked)


@triton.jit
def pack(
    rows,
    found,
    part_rows,
    status,
    positions,
    values,
    codes,
    decoded,
    places,
    parts,
    begins,
    old_v,
    outbox,
    SPARSE: tl.constexpr,
    DENSE: tl.constexpr,
    MASKING: tl.constexpr,
    WORDS: tl.constexpr,
):
    """`outbox` as bytes."""
    if tl.load(status + 1) != FINE:
        return
    part = tl.program_id(0)
    row = tl.load(part_rows + part)
    first, entries = entries_of(rows, found, row, part)
    if entries == 0:
        return
    lane = tl.arange(0, PART)
    there = lane < entries
    to = outbox + cell(found, row, OFFSET)
    part_of_row = part - cell(rows, row, FIRST_PART)
    selected = cell(found, row, SELECTED)
    whole = cell(rows, row, WHOLE) != 0
    if cell(found, row, CODED) == 0:
        x = tl.load(values + first + lane, mask=there, other=0.0).to(tl.int32, bitcast=True)
        if whole:
            put_bytes(to + part_of_row * PART * 4, x, there, 4)
        else:
            position = tl.load(positions + first + lane, mask=there, other=0)
            put_bytes(to + part_of_row * PART * 4, position, there, 4)
            put_bytes(to + (selected + part_of_row * PART) * 4, x, there, 4)
        return
    scale = tl.load(parts + part.to(tl.int64) * FACTS + SCALE)
    parts_of_row = (selected + PART - 1) // PART
    if whole:
        put_values(to, first, part_of_row, parts_of_row, entries, codes, scale, DENSE)
    else:
        put_values(to, first, part_of_row, parts_of_row, entries, codes, scale, SPARSE)
        values_end = cell(found, row, VALUE_BYTES)
        put_rice(
            to + values_end,
            rows,
            found,
            row,
            part,
            cell(found, row, BYTES) - values_end,
            positions,
            places,
            parts,
            begins,
            WORDS,
        )
    take_out(rows, row, positions, decoded, old_v, first, entries, MASKING)


@triton.jit
def ship(outbox, mailbox, TILE: tl.constexpr):
    """Both as 32-bit words. The mailbox is memory of the host that the device can write to."""
    words = (tl.load(outbox) + 3) // 4
    begin = tl.program_id(0) * TILE
    if begin >= words:
        return
    at = begin + tl.arange(0, TILE)
    tl.store(mailbox + at, tl.load(outbox + at, mask=at < words, other=0), mask=at < words)
