"""The thresholds of rows on a GPU: scores of a wanted rank, found by selection.

A pivot is moved and the scores below it are counted, until the count is the wanted rank, or one more: then the
threshold is the largest score below the pivot. Estimates only choose where to look; the counts decide. The bracket of a
threshold is kept in integers that have the order of floats, so that a row with ties ends too: its bracket closes on one
value.

Scores that are not valid are NaN here, which is neither below a pivot nor at or above a threshold.

`in_registers` is for rows that fit there. The scores of a longer row are computed again, in tiles, each time that it is
read, so `of_long_rows` reads it as few times as it can:

1. An eighth of the keys is read twice, for mean and deviation and for the counts at two pivots, as an estimate.
2. The whole row is read for the counts at two pivots, on either side of where the estimate expects the threshold.
3. It is read again, and the scores of a narrow bracket around the threshold are written to memory. If the counts say
   that the threshold is among them, and that all of them were written, it is found there; else this step is repeated.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .reference import ROUNDING as _ROUNDING
from .triton_scores import HIGHEST, LOWEST, float_at, place_of, tile_of

ROUNDING = tl.constexpr(_ROUNDING)
PART = tl.constexpr(64)  # keys of a tile from which scores are collected
LANES = tl.constexpr(4)  # threads that hold a row of a matrix product; each collects for itself
SPACE = tl.constexpr(64)  # how many scores a lane has memory for
CAPACITY = tl.constexpr(128)  # how many scores a row can collect; those of all rows fit into registers
# Ranks from the middle of a bracket to its end, at most: few rows and lanes then have more scores in it than they can
# collect. In a very long row the bracket is WIDE.
NARROW_HALF, WIDE_HALF = tl.constexpr(32), tl.constexpr(48)
# Two places are that many standard deviations from where the threshold is expected: by the sample, and by the counts.
SAMPLE_MARGIN, MARGIN = tl.constexpr(2.5), tl.constexpr(3.5)
# One element of `_collect`: in a tile of a matrix product a thread writes what it holds, where `tl.store` would first
# move the tile between threads. $0 and $2: how many scores of the lane are below the bracket, $1 and $3: where the lane
# writes next, in bytes from $7, $4: the score, $5 and $6: the bracket.
COLLECT = tl.constexpr("""{
    .reg .pred below, inside;
    .reg .u64 address;
    setp.lt.f32 below, $4, $5;
    setp.lt.and.f32 inside, $4, $6, !below;
    cvt.u64.u32 address, $3;
    add.u64 address, address, $7;
    @inside st.global.f32 [address], $4;
    mov.f32 $0, $2;
    @below add.f32 $0, $2, 0f3F800000;
    mov.u32 $1, $3;
    @inside add.u32 $1, $3, 4;
}""")


@triton.jit
def _below(x, pivot):  # type: ignore[no-untyped-def]
    return tl.sum(tl.where(x < pivot[:, None], 1.0, 0.0), 1)


@triton.jit
def _below_in_registers(x, pivot, N: tl.constexpr):  # type: ignore[no-untyped-def]
    if N < 256:
        # Of fewer than 128 comparisons in a thread the compiler makes a vector of bits, if they are summed as floats.
        return tl.sum(tl.where(x < pivot[:, None], 1, 0), 1).to(tl.float32)
    else:
        return _below(x, pivot)


@triton.jit
def _largest_below(x, pivot):  # type: ignore[no-untyped-def]
    return tl.max(tl.where(x < pivot[:, None], x, float("-inf")), 1)


@triton.jit
def _normal_quantile(share):  # type: ignore[no-untyped-def]
    """By Tukey's lambda."""
    return 4.91 * (tl.exp2(0.14 * tl.log2(share)) - tl.exp2(0.14 * tl.log2(1.0 - share)))


@triton.jit
def _normal_gap(z, deviation, count):  # type: ignore[no-untyped-def]
    """Return the gap between neighbours at the quantile z of `count` normal numbers."""
    return deviation * (2.5066 * tl.exp2(0.7213 * z * z) / count)


@triton.jit
def _at_rank(rank, n, low, below_low, high, below_high):  # type: ignore[no-untyped-def]
    """Interpolate the value at a rank from those at two others; NaN or infinite where that is impossible."""
    of_low = _normal_quantile(below_low / n)
    of_rank = _normal_quantile(tl.minimum(tl.maximum(rank / n, 0.0), 1.0))
    return low + (high - low) * ((of_rank - of_low) / (_normal_quantile(below_high / n) - of_low))


@triton.jit
def _rank(count, share, is_on, HIGH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the wanted rank of rows of `count` scores, and whether it exists."""
    n = count.to(tl.int32)
    rank = tl.floor(n.to(tl.float64) * share + ROUNDING).to(tl.int32)
    if not HIGH:
        rank = n - rank
    return rank, (rank >= 0) & (rank < n) & is_on


@triton.jit
def _widest(low, high):  # type: ignore[no-untyped-def]
    return tl.max((high - low).to(tl.uint32), 0)


@triton.jit
def _select(x, wanted, low, high, pivot, gap, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the score of rank `wanted` of each row of `x`, [M, N].

    All thresholds are between two places. A row whose place is found has nothing between them, and stays there.
    `gap` is how far apart neighbours are.
    """
    low_pivot = tl.full([M], float("nan"), tl.float32)
    high_pivot = low_pivot
    below_low = tl.zeros([M], tl.float32)
    below_high = below_low
    below = below_low
    turn = 0
    widest = _widest(low, high)
    while widest > 1:
        place = place_of(pivot)
        if (turn > 8) & (turn % 2 == 0):
            place = (low & high) + ((low ^ high) >> 1)
        place = tl.minimum(tl.maximum(place, low + 1), high - 1)
        pivot = float_at(place)
        below = _below_in_registers(x, pivot, N)
        is_less = below < wanted
        is_more = below > wanted + 1.0
        low = tl.where(is_more, low, place)
        high = tl.where(is_less, high, tl.where(is_more, place, place + 1))
        low_pivot = tl.where(is_less, pivot, low_pivot)
        high_pivot = tl.where(is_more, pivot, high_pivot)
        below_low = tl.where(is_less, below, below_low)
        below_high = tl.where(is_more, below, below_high)
        between = low_pivot + (high_pivot - low_pivot) * ((wanted + 0.5 - below_low) / (below_high - below_low))
        pivot = tl.where(between == between, between, pivot + gap * (wanted + 0.5 - below))
        gap *= 2.0
        turn += 1
        if turn > 2:  # earlier no row set is complete, and the check takes time
            widest = _widest(low, high)
    pivot = float_at(low)
    return tl.where(below == wanted + 1.0, _largest_below(x, pivot), pivot)


@triton.jit
def in_registers(  # type: ignore[no-untyped-def]
    source, rows, share, is_on,
    HIGH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, D_STEPS: tl.constexpr,
    VALID: tl.constexpr,
):  # fmt: skip
    """Return the scores of rows of one tile, and the threshold of each row, NaN where there is none."""
    x, count, total, squares = tile_of(source, rows, 0, 1, M, N, BLOCK_D, D_STEPS, VALID, HIGH)
    rank, exists = _rank(count, share, is_on, HIGH)
    wanted = rank.to(tl.float32)
    mean = total / count
    deviation = tl.sqrt(tl.maximum(squares / count - mean * mean, 0.0))
    z = _normal_quantile((wanted + 0.5) / count)
    low = tl.full([M], LOWEST, tl.int32)
    high = tl.where((rows < source[4][0]) & exists & (rank > 0), HIGHEST, LOWEST + 1)
    pivot, gap = mean + z * deviation, _normal_gap(z, deviation, count)
    cut = _select(x, wanted, low, high, pivot, gap, M, N)
    return x, tl.where(exists, cut, float("nan"))


@triton.jit
def _counts(  # type: ignore[no-untyped-def]
    source, rows, a, b, first, tiles, step,
    HIGH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, D_STEPS: tl.constexpr,
    VALID: tl.constexpr,
):  # fmt: skip
    """Count the scores, and those below the pivots a and b."""
    count = tl.zeros([M], tl.float32)
    below_a, below_b = count, count
    for tile in range(tiles):
        at = first + tile * N * step
        x, n, _, _ = tile_of(source, rows, at, step, M, N, BLOCK_D, D_STEPS, VALID, HIGH)
        count += n
        below_a += _below(x, a)
        below_b += _below(x, b)
    return count, below_a, below_b


@triton.jit
def _estimate(  # type: ignore[no-untyped-def]
    source, rows, share, first, tiles,
    HIGH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, D_STEPS: tl.constexpr,
    VALID: tl.constexpr,
):  # fmt: skip
    """Return two places, one probably below and one above the threshold, from an eighth of the keys."""
    sampled = tl.maximum(tiles // 8, 1)
    step = tiles // sampled
    n = tl.zeros([M], tl.float32)
    total, squares = n, n
    for tile in range(sampled):
        at = first + tile * N * step
        _, more, more_total, more_squares = tile_of(source, rows, at, step, M, N, BLOCK_D, D_STEPS, VALID, HIGH)
        n += more
        total += more_total
        squares += more_squares
    mean = total / n
    deviation = tl.sqrt(tl.maximum(squares / n - mean * mean, 0.0))
    z = _normal_quantile(share)
    half = 1.0 + SAMPLE_MARGIN * tl.sqrt(share * (1.0 - share) * n)  # in ranks of the sample
    reach = half * _normal_gap(z, deviation, n)
    low = mean + z * deviation - reach
    high = mean + z * deviation + reach
    _, below_low, below_high = _counts(
        source, rows, low, high, first, sampled, step, HIGH, M, N, BLOCK_D, D_STEPS, VALID
    )
    a = _at_rank(share * n - half, n, low, below_low, high, below_high)
    b = _at_rank(share * n + half, n, low, below_low, high, below_high)
    is_better = (a == a) & (b == b) & (low < high)  # the scores of a row may all be the same
    a, b = place_of(tl.where(is_better, a, low)), place_of(tl.where(is_better, b, high))
    a = tl.minimum(tl.maximum(a, LOWEST), HIGHEST - 2)
    return a, tl.minimum(tl.maximum(b, a + 1), HIGHEST - 1)


@triton.jit
def piece_of(x, NUMBER: tl.constexpr, M: tl.constexpr):  # type: ignore[no-untyped-def]
    """One of the 16 scores of each lane of a tile [M, PART]: [M, LANES]. Threads hold the pieces of what they hold."""
    x = tl.permute(tl.reshape(x, [M, 8, LANES, 2]), [0, 2, 1, 3])
    x = tl.split(x)[NUMBER // 8]
    x = tl.split(tl.reshape(x, [M, LANES, 4, 2]))[NUMBER // 4 % 2]
    x = tl.split(tl.reshape(x, [M, LANES, 2, 2]))[NUMBER // 2 % 2]
    return tl.split(x)[NUMBER % 2]


@triton.jit
def _collect(x, below, at, a, b, memory_ptr, M: tl.constexpr, ASM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the scores of a tile, [M, PART], that are in the bracket from a to b, each to the memory of its lane.

    Returns how many scores of each lane were below the bracket, with those from before, and where it writes next, in
    bytes from `memory_ptr`.
    """
    # as tiles, for which no thread needs the bracket of another thread's row
    a = piece_of(tl.broadcast_to(a[:, None], [M, PART]), 0, M)
    b = piece_of(tl.broadcast_to(b[:, None], [M, PART]), 0, M)
    for number in tl.static_range(PART // LANES):
        piece = piece_of(x, number, M)
        if ASM:
            below, at = tl.inline_asm_elementwise(
                COLLECT, "=f,=r,f,r,f,f,f,l", [below, at, piece, a, b, memory_ptr.to(tl.int64)],
                dtype=(tl.float32, tl.int32), is_pure=False, pack=1,
            )  # fmt: skip
        else:
            is_inside = (piece >= a) & (piece < b)
            tl.store(memory_ptr + at // 4, piece, mask=is_inside)
            below += tl.where(piece < a, 1.0, 0.0)
            at += tl.where(is_inside, 4, 0)
    return below, at


@triton.jit
def _store_counts(counts, taken, is_found):  # type: ignore[no-untyped-def]
    """Write how many scores each lane has, at the places of its row."""
    # one by one: the sums leave `taken` where the threads of a matrix product have it
    for lane in tl.static_range(LANES):
        of_lane = tl.sum(tl.where(tl.arange(0, LANES)[None, :] == lane, taken, 0), 1)
        tl.store(counts + lane, of_lane.to(tl.float32), mask=is_found)


@triton.jit
def _collected(of_row, counts, M: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the scores that all lanes have collected, [M, CAPACITY]; NaN where they are fewer.

    With WIDE they follow one another; otherwise each lane has an equal share of the places.
    """
    if WIDE:
        slots = tl.arange(0, CAPACITY)[None, :]
        behind = tl.zeros([M], tl.int32)
        shift = tl.zeros([M, CAPACITY], tl.int32)  # the scores of the first lane come first, then those of the next one
        for lane in tl.static_range(LANES):
            shift = tl.where(slots >= behind[:, None], (-behind + SPACE * lane)[:, None], shift)
            behind += tl.load(counts + lane).to(tl.int32)
        return tl.load(of_row[:, None] + (slots + shift), mask=slots < behind[:, None], other=float("nan"))
    else:
        slots = tl.arange(0, CAPACITY // LANES)[None, None, :]
        lanes = tl.arange(0, LANES)[None, :]
        count = tl.load(counts[:, None] + lanes).to(tl.int32)
        x = tl.load(of_row[:, None, None] + (lanes * SPACE)[:, :, None] + slots)
        return tl.reshape(tl.where(slots < count[:, :, None], x, float("nan")), [M, CAPACITY])


@triton.jit
def _narrowed(low, high, below_low, below_high, a, b, below_a, below_b, wanted, is_open):  # type: ignore[no-untyped-def]
    """Return the bracket of rows that are open, after the scores below the places a and b in it have been counted."""
    is_below_a = is_open & (below_a > wanted)
    is_above_a = is_open & (below_a <= wanted)
    # nothing is counted behind +inf, and below the bracket's end the count is known
    is_below_b = is_above_a & (below_b > wanted) & (b < high)
    is_above_b = is_above_a & (below_b <= wanted) & (b < high)
    below_high = tl.where(is_below_a, below_a, tl.where(is_below_b, below_b, below_high))
    below_low = tl.where(is_above_b, below_b, tl.where(is_above_a, below_a, below_low))
    high = tl.where(is_below_a, a, tl.where(is_below_b, b, high))
    low = tl.where(is_above_b, b, tl.where(is_above_a, a, low))
    return low, high, below_low, below_high


@triton.jit
def _around(  # type: ignore[no-untyped-def]
    low, high, below_low, below_high, a, b, below_a, below_b, one, wanted, count, turn, WIDE: tl.constexpr
):
    """Return two places in the bracket, around where the threshold is expected.

    `one` is one of the scores that were collected last. Where most are the same, it probably is the threshold.
    """
    # between the ends of the bracket, or, if one of them is not known, beyond the last two places
    is_known = (low > LOWEST) & (high < HIGHEST)
    left, right = tl.where(is_known, below_low, below_a), tl.where(is_known, below_high, below_b)
    at_left, at_right = float_at(tl.where(is_known, low, a)), float_at(tl.where(is_known, high, b))
    middle = wanted + 0.5
    beyond = tl.maximum(tl.maximum(left - middle, middle - right), 0.0)
    error = tl.sqrt(tl.abs((middle - left) * (right - middle)) / (right - left))
    half = tl.minimum(2.0 + MARGIN * error + 0.1 * beyond, WIDE_HALF if WIDE else NARROW_HALF)
    first = _at_rank(middle - half, count, at_left, left, at_right, right)
    last = _at_rank(middle + half, count, at_left, left, at_right, right)
    a, b = place_of(first), place_of(last)
    # If that fails, every third time they are a quarter of the bracket from its ends, so that the search does end.
    quarter = ((high - low).to(tl.uint32) >> 2).to(tl.int32)
    is_lost = (first != first) | (last != last) | ((turn > 2) & (turn % 3 == 0))
    a = tl.where(is_lost, low + tl.maximum(quarter, 1), a)
    b = tl.where(is_lost, high - quarter, b)
    at_one = place_of(one)
    is_one = (turn % 3 == 2) & (at_one >= low) & (at_one < high)
    a = tl.where(is_one, at_one, a)
    b = tl.where(is_one, at_one + 1, b)
    a = tl.minimum(tl.maximum(a, low), high - 1)
    return a, tl.minimum(tl.minimum(tl.maximum(b, a + 1), high), HIGHEST - 1)


@triton.jit
def _memory_of(memory_ptr, M: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return pointers to the collected scores and counts of each row, and the offset of each lane in bytes."""
    of_row = memory_ptr + tl.arange(0, M) * (LANES * SPACE)
    counts = memory_ptr + M * LANES * SPACE + tl.arange(0, M) * LANES
    return of_row, counts, (tl.arange(0, M)[:, None] * LANES + tl.arange(0, LANES)[None, :]) * (SPACE * 4)


@triton.jit
def _turn(  # type: ignore[no-untyped-def]
    source, rows, start, end, memory_ptr, state, wanted, count, turn,
    HIGH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, D_STEPS: tl.constexpr,
    VALID: tl.constexpr, ASM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Collect the scores around the place where the threshold of each row is expected. Returns the new state."""
    low, high, below_low, below_high, a, b, below_a, below_b, one, is_open = state
    of_row, counts, first = _memory_of(memory_ptr, M)
    a, b = _around(low, high, below_low, below_high, a, b, below_a, below_b, one, wanted, count, turn, WIDE)
    # nothing is in the bracket of a row that is settled
    from_a = tl.where(is_open, float_at(a), float("nan"))
    to_b = tl.where(is_open, float_at(b), float("nan"))
    below = tl.zeros([M, LANES], tl.float32)
    at = first
    lost = tl.zeros([M, LANES], tl.int32)
    for tile in range(start * (N // PART), end * (N // PART)):
        x, _, _, _ = tile_of(source, rows, tile * PART, 1, M, PART, BLOCK_D, D_STEPS, VALID, HIGH)
        # a lane that is so full that the next tile may not fit begins again
        is_full = at - first > (SPACE - PART // LANES) * 4
        lost += tl.where(is_full, at - first, 0)
        at = tl.where(is_full, first, at)
        below, at = _collect(x, below, at, from_a, to_b, memory_ptr, M, ASM)
    taken = (at - first + lost) // 4
    below_a = tl.sum(below, 1)
    in_row = tl.sum(taken, 1)
    below_b = below_a + in_row.to(tl.float32)
    low, high, below_low, below_high = _narrowed(
        low, high, below_low, below_high, a, b, below_a, below_b, wanted, is_open
    )
    fits = tl.max(taken, 1) <= CAPACITY // LANES
    if WIDE:
        fits = (tl.max(lost, 1) == 0) & (in_row <= CAPACITY)
    is_found = is_open & (below_a <= wanted) & (wanted < below_b) & fits
    _store_counts(counts, taken, is_found)
    is_open = is_open & ~is_found & ((high - low).to(tl.uint32) > 1)
    tl.debug_barrier()  # a thread reads what others have collected
    one = tl.load(of_row)
    tl.debug_barrier()
    return low, high, below_low, below_high, a, b, below_a, below_b, one, is_open


@triton.jit
def of_long_rows(  # type: ignore[no-untyped-def]
    source, rows, share, is_on, start, end, memory_ptr,
    HIGH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, D_STEPS: tl.constexpr,
    VALID: tl.constexpr, ASM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Return the threshold of each row, NaN where there is none.

    All valid scores are in the tiles from `start` to `end` − 1. At `memory_ptr` are LANES · (SPACE + 1) floats for
    each row of the program: the scores that each lane has collected, followed by their numbers. In a very long row
    (WIDE) lanes may collect more: fewer rows are read again, but merging takes longer.
    """
    expected = (tl.zeros([M], tl.float64) + share).to(tl.float32)
    if not HIGH:
        expected = 1.0 - expected
    a, b = _estimate(source, rows, expected, start * N, end - start, HIGH, M, N, BLOCK_D, D_STEPS, VALID)
    count, below_a, below_b = _counts(
        source, rows, float_at(a), float_at(b), start * N, end - start, 1, HIGH, M, N, BLOCK_D, D_STEPS, VALID
    )
    rank, exists = _rank(count, share, is_on, HIGH)
    wanted = rank.to(tl.float32)
    # The threshold is at `low` or above it, and below `high`; `below_low` and `below_high` scores are below these.
    low = tl.full([M], LOWEST, tl.int32)
    high = tl.where((rows < source[4][0]) & exists & (rank > 0), HIGHEST, LOWEST + 1)
    is_open = (high - low).to(tl.uint32) > 1
    low, high, below_low, below_high = _narrowed(
        low, high, tl.zeros([M], tl.float32), count, a, b, below_a, below_b, wanted, is_open
    )
    is_open = (high - low).to(tl.uint32) > 1
    of_row, counts, _ = _memory_of(memory_ptr, M)
    one = tl.full([M], float("nan"), tl.float32)
    tl.store(of_row, one)
    _store_counts(counts, tl.zeros([M, LANES], tl.int32), rows >= 0)
    tl.debug_barrier()  # before other threads write there, or read
    state = low, high, below_low, below_high, a, b, below_a, below_b, one, is_open
    # The first turn is enough for nearly all rows, and takes fewer steps outside of the loop.
    state = _turn(
        source, rows, start, end, memory_ptr, state, wanted, count, 0,
        HIGH, M, N, BLOCK_D, D_STEPS, VALID, ASM, WIDE,
    )  # fmt: skip
    low, high, below_low, below_high, a, b, below_a, below_b, one, is_open = state
    turn = 1
    any_open = tl.max(is_open.to(tl.int32), 0)
    while any_open > 0:
        state = low, high, below_low, below_high, a, b, below_a, below_b, one, is_open
        low, high, below_low, below_high, a, b, below_a, below_b, one, is_open = _turn(
            source, rows, start, end, memory_ptr, state, wanted, count, turn,
            HIGH, M, N, BLOCK_D, D_STEPS, VALID, ASM, WIDE,
        )  # fmt: skip
        any_open = tl.max(is_open.to(tl.int32), 0)
        turn += 1
    wanted -= below_low
    gap = (float_at(high) - float_at(low)) / (below_high - below_low)
    pivot = float_at(low) + gap * (wanted + 0.5)
    cut = _select(_collected(of_row, counts, M, WIDE), wanted, low, high, pivot, gap, M, CAPACITY)
    return tl.where(exists, cut, float("nan"))
