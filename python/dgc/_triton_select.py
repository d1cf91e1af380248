# mypy: ignore-errors
"""The fused kernels: from gradients to the entries that are sent. _triton_pack.py goes on from there.

All tensors of a bucket go through together. A program of a kernel has one *block* of BLOCK elements
of one tensor, or one *row*: all of a tensor. The order:

    check        gradients: is any NaN or Inf?                        blocks
    verdict      ... in any block                                     one program
    accumulate   u and v; lists what reaches the threshold            blocks
    add_up       are there k such candidates at least, and not too many?    rows
    gather       magnitudes of the candidates, side by side           blocks
    search       the k-th largest magnitude, of these or of all v     rows
    count        entries above it, and entries equal to it            blocks
    place        where each block's entries go; who of the equal ones is sent    rows
    write        positions, values, and what u and v were             blocks

Nothing waits for the host: what a kernel needs to know of the one before is in memory of the device.
There are no atomics: each word is written by one program, and sums are of integers. So results do
not depend on the order in which programs run. Of floats each operation is rounded once, as in libdgc
(src/compress/update.h); kernels are compiled with enable_fp_fusion=False.

`rows` has 16 numbers a tensor, which the host knows, and `found` 16 that kernels find.
"""

import triton
import triton.language as tl

COLUMNS = tl.constexpr(16)
# Of `rows`: addresses of gradient, v and u; elements, entries to send (k); first block, blocks;
# first of the entries, first part, parts (of 256 entries); whether all is sent; first of the
# candidates, room for them; the tensor's number.
GRADIENT = tl.constexpr(0)
RESIDUAL = tl.constexpr(1)
VELOCITY = tl.constexpr(2)
ELEMENTS = tl.constexpr(3)
ENTRIES = tl.constexpr(4)
FIRST_BLOCK = tl.constexpr(5)
BLOCKS = tl.constexpr(6)
FIRST_ENTRY = tl.constexpr(7)
FIRST_PART = tl.constexpr(8)
PARTS = tl.constexpr(9)
WHOLE = tl.constexpr(10)
FIRST_CANDIDATE = tl.constexpr(11)
ROOM = tl.constexpr(12)
TENSOR = tl.constexpr(13)

# Of `found`: whether the candidates are all that is needed, their number; the k-th largest
# magnitude, how many of the entries that have it are sent; entries selected. The rest is
# _triton_pack.py's.
LISTED = tl.constexpr(0)
CANDIDATES = tl.constexpr(1)
KTH = tl.constexpr(2)
TIES = tl.constexpr(3)
SELECTED = tl.constexpr(4)

# Of `carried`, by tensor: the threshold of the next step, the k that it is for, the share of the k-th
# largest that it is, and the k-th largest: all but k as a float's bits.
CARRIED = tl.constexpr(4)

# Of `status`: what is wrong, 0 where nothing is.
FINE = tl.constexpr(0)
BAD_GRADIENT = tl.constexpr(1)
BAD_RESIDUAL = tl.constexpr(2)

INFINITY_BITS = tl.constexpr(0x7F800000)
LEAST_VELOCITY = tl.constexpr(2.0**-126)  # smallest normal float
MOST = tl.constexpr(0x7FFFFFFF)


@triton.jit
def cell(table, row, column):
    return tl.load(table + row * COLUMNS + column)


@triton.jit
def floats_at(address):
    return address.to(tl.pointer_type(tl.float32))


@triton.jit
def magnitude(x):
    """As an integer, which orders like the float."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def block_begin(rows, row, block, BLOCK: tl.constexpr):
    return (block - cell(rows, row, FIRST_BLOCK)) * BLOCK


@triton.jit
def elements_left(rows, row, begin, BLOCK: tl.constexpr):
    left = cell(rows, row, ELEMENTS) - begin
    return tl.where(left < BLOCK, left, BLOCK).to(tl.int32)


@triton.jit
def check(rows, block_rows, bad, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    row = tl.load(block_rows + block)
    begin = block_begin(rows, row, block, BLOCK)
    lane = tl.arange(0, BLOCK)
    inside = lane < elements_left(rows, row, begin, BLOCK)
    g = tl.load(floats_at(cell(rows, row, GRADIENT)) + begin + lane, mask=inside, other=0.0)
    tl.store(bad + block, tl.max((magnitude(g) >= INFINITY_BITS).to(tl.int32), axis=0))


@triton.jit
def verdict(bad, blocks, status, TILE: tl.constexpr):
    lane = tl.arange(0, TILE)
    worst = 0
    for begin in range(0, blocks, TILE):
        at = begin + lane
        found = tl.load(bad + at, mask=at < blocks, other=0)
        worst = tl.maximum(worst, tl.max(found, axis=0))
    tl.store(status, tl.where(worst > 0, BAD_GRADIENT, FINE))


@triton.jit
def accumulate(
    rows,
    block_rows,
    carried,
    status,
    counts,
    lists,
    scale,
    momentum,
    RULE: tl.constexpr,  # 0: v += g; 1: heavy-ball; 2: Nesterov
    BLOCK: tl.constexpr,
):
    if tl.load(status) != FINE:
        return
    block = tl.program_id(0)
    row = tl.load(block_rows + block)
    begin = block_begin(rows, row, block, BLOCK)
    lane = tl.arange(0, BLOCK)
    inside = lane < elements_left(rows, row, begin, BLOCK)
    g = tl.load(floats_at(cell(rows, row, GRADIENT)) + begin + lane, mask=inside, other=0.0)
    g = g * scale
    v_at = floats_at(cell(rows, row, RESIDUAL)) + begin + lane
    v = tl.load(v_at, mask=inside, other=0.0)
    if RULE == 0:
        v = v + g
    else:
        u_at = floats_at(cell(rows, row, VELOCITY)) + begin + lane
        u = tl.load(u_at, mask=inside, other=0.0)
        if RULE == 1:
            u = momentum * u
            u = u + g
            v = v + u
        else:
            u = u + g
            u = momentum * u
            v = v + u
            v = v + g
        tl.store(u_at, tl.where(tl.abs(u) >= LEAST_VELOCITY, u, 0.0), mask=inside)
    tl.store(v_at, v, mask=inside)

    if cell(rows, row, WHOLE) == 0:
        mine = carried + cell(rows, row, TENSOR) * CARRIED
        known = tl.load(mine + 1) == cell(rows, row, ENTRIES)
        threshold = tl.where(known, tl.load(mine), MOST)
        chosen = (inside & (magnitude(v) >= threshold)).to(tl.int32)
        place = tl.cumsum(chosen, 0) - chosen
        tl.store(counts + block, tl.sum(chosen, axis=0))
        at = block.to(tl.int64) * BLOCK + place
        tl.store(lists + at, lane.to(tl.int16), mask=chosen != 0)


@triton.jit
def add_up(rows, found, status, counts, bases, TILE: tl.constexpr):
    if tl.load(status) != FINE:
        return
    row = tl.program_id(0)
    if cell(rows, row, WHOLE) != 0:
        return
    first = cell(rows, row, FIRST_BLOCK)
    blocks = cell(rows, row, BLOCKS).to(tl.int32)
    lane = tl.arange(0, TILE)
    total = 0
    for begin in range(0, blocks, TILE):
        at = begin + lane
        some = tl.load(counts + first + at, mask=at < blocks, other=0)
        tl.store(bases + first + at, total + tl.cumsum(some, 0) - some, mask=at < blocks)
        total += tl.sum(some, axis=0)
    enough = total >= cell(rows, row, ENTRIES)
    fits = total <= cell(rows, row, ROOM)
    tl.store(found + row * COLUMNS + LISTED, (enough & fits).to(tl.int64))
    tl.store(found + row * COLUMNS + CANDIDATES, total.to(tl.int64))


@triton.jit
def gather(
    rows,
    found,
    block_rows,
    status,
    counts,
    bases,
    lists,
    magnitudes,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    if tl.load(status) != FINE:
        return
    block = tl.program_id(0)
    row = tl.load(block_rows + block)
    if cell(rows, row, WHOLE) != 0:
        return
    if cell(found, row, LISTED) == 0:
        return
    v = floats_at(cell(rows, row, RESIDUAL)) + block_begin(rows, row, block, BLOCK)
    to = magnitudes + cell(rows, row, FIRST_CANDIDATE) + tl.load(bases + block)
    total = tl.load(counts + block)
    lane = tl.arange(0, TILE)
    for begin in range(0, total, TILE):
        at = begin + lane
        listed = tl.load(lists + block.to(tl.int64) * BLOCK + at, mask=at < total, other=0)
        x = tl.load(v + listed.to(tl.int32), mask=at < total, other=0.0)
        tl.store(to + at, magnitude(x), mask=at < total)


@triton.jit
def carry(rows, found, carried, row, kth):
    """The threshold of the next step: a share of the k-th largest of this one. It changes which way
    the next selection is found, never which it is."""
    k = cell(rows, row, ENTRIES)
    mine = carried + cell(rows, row, TENSOR) * CARRIED
    known = tl.load(mine + 1) == k
    share = tl.load(mine + 2).to(tl.float32, bitcast=True)
    share = tl.where(known, share, 0.9)
    candidates = cell(found, row, CANDIDATES)
    short = known & (candidates < k)
    many = known & (candidates > k + k // 2 + 64)
    share = tl.where(short, tl.maximum(share * 0.8, 0.25), share)
    share = tl.where(many, tl.minimum(share * 1.02, 0.97), share)
    now = kth.to(tl.float32, bitcast=True)
    before = tl.load(mine + 3).to(tl.float32, bitcast=True)
    # Early in training magnitudes grow from step to step. Half of that: a threshold that is too low
    # costs less than one that is too high.
    grown = tl.where(known & (now > before) & (before > 0.0), 0.5 * (now - before), 0.0)
    following = magnitude((now + tl.minimum(grown, now)) * share)
    tl.store(mine, tl.maximum(following, 1))
    tl.store(mine + 3, kth)
    tl.store(mine + 1, k.to(tl.int32))
    tl.store(mine + 2, share.to(tl.int32, bitcast=True))


@triton.jit
def search(rows, found, carried, status, magnitudes, TILE: tl.constexpr):
    """Four bits of the k-th largest magnitude at a time, from the top."""
    if tl.load(status) != FINE:
        return
    row = tl.program_id(0)
    if cell(rows, row, WHOLE) != 0:
        return
    k = cell(rows, row, ENTRIES)
    listed = cell(found, row, LISTED) != 0
    total = tl.where(listed, cell(found, row, CANDIDATES), cell(rows, row, ELEMENTS)).to(tl.int32)
    of_all = cell(rows, row, RESIDUAL).to(tl.pointer_type(tl.int32))
    source = tl.where(listed, magnitudes + cell(rows, row, FIRST_CANDIDATE), of_all)
    lane = tl.arange(0, TILE)
    digit = tl.arange(0, 16)
    kth = 0
    above = k - k  # entries with a larger magnitude than any that is still looked at
    for step in range(0, 8):
        shift = 28 - 4 * step
        lowest = (kth >> shift) + digit
        reaching = tl.zeros([16], dtype=tl.int64)
        for begin in range(0, total, TILE):
            at = begin + lane
            m = tl.load(source + at, mask=at < total, other=0) & 0x7FFFFFFF
            high = tl.where(at < total, m >> shift, -1)
            reach = (high[:, None] >= lowest[None, :]).to(tl.int32)
            reaching += tl.sum(reach, axis=0).to(tl.int64)
        best = tl.max(tl.where(reaching >= k, digit, 0), axis=0)
        beyond = tl.sum(tl.where(digit == best + 1, reaching, 0), axis=0)
        above = tl.where(best < 15, beyond, above)
        kth += best << shift
    # Zeros are never sent: where only they are left, there is nothing equal to take.
    ties = tl.where(kth > 0, k - above, 0)
    tl.store(found + row * COLUMNS + KTH, kth.to(tl.int64))
    tl.store(found + row * COLUMNS + TIES, ties.to(tl.int64))
    carry(rows, found, carried, row, kth)


@triton.jit
def count(
    rows,
    found,
    block_rows,
    status,
    counts,
    lists,
    greater,
    equal,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    if tl.load(status) != FINE:
        return
    block = tl.program_id(0)
    row = tl.load(block_rows + block)
    if cell(rows, row, WHOLE) != 0:
        return
    begin = block_begin(rows, row, block, BLOCK)
    v = floats_at(cell(rows, row, RESIDUAL)) + begin
    kth = cell(found, row, KTH).to(tl.int32)
    more = 0
    same = 0
    if cell(found, row, LISTED) != 0:
        total = tl.load(counts + block)
        lane = tl.arange(0, TILE)
        for some in range(0, total, TILE):
            at = some + lane
            listed = tl.load(lists + block.to(tl.int64) * BLOCK + at, mask=at < total, other=0)
            m = magnitude(tl.load(v + listed.to(tl.int32), mask=at < total, other=0.0))
            more += tl.sum(((m > kth) & (at < total)).to(tl.int32), axis=0)
            same += tl.sum(((m == kth) & (at < total)).to(tl.int32), axis=0)
    else:
        all_lanes = tl.arange(0, BLOCK)
        inside = all_lanes < elements_left(rows, row, begin, BLOCK)
        m = magnitude(tl.load(v + all_lanes, mask=inside, other=0.0))
        more += tl.sum(((m > kth) & inside).to(tl.int32), axis=0)
        same += tl.sum(((m == kth) & inside).to(tl.int32), axis=0)
    tl.store(greater + block, more)
    tl.store(equal + block, same)


@triton.jit
def place(rows, found, status, greater, equal, bases, TILE: tl.constexpr):
    """Of entries that are equal to the k-th largest those with the lowest positions are sent. In
    place of how many a block has, `equal` then says how many of them it sends."""
    if tl.load(status) != FINE:
        return
    row = tl.program_id(0)
    if cell(rows, row, WHOLE) != 0:
        tl.store(found + row * COLUMNS + SELECTED, cell(rows, row, ELEMENTS))
        return
    first = cell(rows, row, FIRST_BLOCK)
    blocks = cell(rows, row, BLOCKS).to(tl.int32)
    ties = cell(found, row, TIES)
    lane = tl.arange(0, TILE)
    seen = ties - ties  # equal ones in the blocks before
    total = 0
    for begin in range(0, blocks, TILE):
        at = begin + lane
        more = tl.load(greater + first + at, mask=at < blocks, other=0)
        same = tl.load(equal + first + at, mask=at < blocks, other=0).to(tl.int64)
        left = ties - seen - (tl.cumsum(same, 0) - same)
        taken = tl.minimum(tl.maximum(left, 0), same).to(tl.int32)
        here = more + taken
        tl.store(bases + first + at, total + tl.cumsum(here, 0) - here, mask=at < blocks)
        tl.store(equal + first + at, taken, mask=at < blocks)
        seen += tl.sum(same, axis=0)
        total += tl.sum(here, axis=0)
    tl.store(found + row * COLUMNS + SELECTED, total.to(tl.int64))


@triton.jit
def put(
    rows,
    row,
    element,
    use,
    to,
    positions,
    values,
    old_v,
    old_u,
    ahead,
    AHEAD: tl.constexpr,
    MASKING: tl.constexpr,
):
    """Entries `use` of the elements given, to the places `to`."""
    v = tl.load(floats_at(cell(rows, row, RESIDUAL)) + element, mask=use, other=0.0)
    sent = v
    if AHEAD:
        g = tl.load(floats_at(cell(rows, row, GRADIENT)) + element, mask=use, other=0.0)
        g = g * ahead
        sent = v + g
    tl.store(positions + to, element.to(tl.int32), mask=use)
    tl.store(values + to, sent, mask=use)
    tl.store(old_v + to, v, mask=use)
    if MASKING:
        u = tl.load(floats_at(cell(rows, row, VELOCITY)) + element, mask=use, other=0.0)
        tl.store(old_u + to, u, mask=use)


@triton.jit
def write(
    rows,
    found,
    block_rows,
    status,
    counts,
    lists,
    bases,
    equal,
    positions,
    values,
    old_v,
    old_u,
    ahead,
    AHEAD: tl.constexpr,
    MASKING: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    if tl.load(status) != FINE:
        return
    block = tl.program_id(0)
    row = tl.load(block_rows + block)
    begin = block_begin(rows, row, block, BLOCK)
    lane = tl.arange(0, BLOCK)
    inside = lane < elements_left(rows, row, begin, BLOCK)
    to = cell(rows, row, FIRST_ENTRY)
    if cell(rows, row, WHOLE) != 0:
        element = begin + lane
        put(
            rows,
            row,
            element,
            inside,
            to + element,
            positions,
            values,
            old_v,
            old_u,
            ahead,
            AHEAD,
            MASKING,
        )
        return
    to += tl.load(bases + block)
    kth = cell(found, row, KTH).to(tl.int32)
    ties = tl.load(equal + block)
    v = floats_at(cell(rows, row, RESIDUAL)) + begin
    if cell(found, row, LISTED) == 0:
        m = magnitude(tl.load(v + lane, mask=inside, other=0.0))
        tie = ((m == kth) & inside).to(tl.int32)
        first_ties = (tie != 0) & (tl.cumsum(tie, 0) <= ties)
        chosen = (((m > kth) & inside) | first_ties).to(tl.int32)
        at = to + tl.cumsum(chosen, 0) - chosen
        put(
            rows,
            row,
            begin + lane,
            chosen != 0,
            at,
            positions,
            values,
            old_v,
            old_u,
            ahead,
            AHEAD,
            MASKING,
        )
        return
    total = tl.load(counts + block)
    tile = tl.arange(0, TILE)
    seen = 0
    for some in range(0, total, TILE):
        at = some + tile
        there = at < total
        listed = tl.load(lists + block.to(tl.int64) * BLOCK + at, mask=there, other=0).to(tl.int32)
        m = magnitude(tl.load(v + listed, mask=there, other=0.0))
        tie = ((m == kth) & there).to(tl.int32)
        first_ties = (tie != 0) & (seen + tl.cumsum(tie, 0) <= ties)
        chosen = (((m > kth) & there) | first_ties).to(tl.int32)
        put(
            rows,
            row,
            begin + listed,
            chosen != 0,
            to + tl.cumsum(chosen, 0) - chosen,
            positions,
            values,
            old_v,
            old_u,
            ahead,
            AHEAD,
            MASKING,
        )
        seen += tl.sum(tie, axis=0)
        to += tl.sum(chosen, axis=0)
