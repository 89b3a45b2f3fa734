"""Attention on a GPU with its mask as bits: no map and no bias in memory, forward or backward.

Scores are computed tile by tile with a running softmax; the logarithm of its sum is saved for the backward, which
computes the weights again. Draws of dropout are computed again too. The backward has two kernels, one for the gradient
of the query and one for those of key and value, so that no sum depends on the order in which programs finish.

Causal attention, windows and padding are bits as well. `blocks` says which tiles have any, so that the others are
passed over. The query of an empty row counts as zero: the forward and the kernel of the query's gradient set it to
zero, and the latter writes it for the kernel of key and value. WHOLE says that no tile goes beyond the last query or
key: nothing is compared with their numbers then. The strides from position to position are constants, so that addresses
take fewer steps.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from ..draws.triton import GOLDEN, MULTIPLY_1, MULTIPLY_2, mix
from ..mask_bits.reference import BLOCK as _BLOCK

BLOCK = tl.constexpr(_BLOCK)
LN_2 = tl.constexpr(math.log(2))
# One element of `_masked_columns`. Otherwise the compiler would pack the results of comparisons into words. $0: the
# result, $1: the score, $2: a word of bits, $3: the bit of the position.
CHOOSE = tl.constexpr("""{
    .reg .b32 bits;
    .reg .pred attends;
    and.b32 bits, $2, $3;
    setp.ne.u32 attends, bits, 0;
    selp.f32 $0, $1, 0fFF800000, attends;
}""")


@triton.jit
def _allowed_rows(  # type: ignore[no-untyped-def]
    words_ptr, rows, tile, Q, K, wq, rescale, M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, WHOLE: tl.constexpr
):
    """Return which positions attend, [M, N] or [1, N]."""
    offsets = tl.arange(0, N)
    if BITS == 0:
        allowed = ((tile * N + offsets < K) | WHOLE)[None, :]
    else:
        at = tile * (N // 16) + tl.arange(0, N // 16)
        if BITS == 1:
            words = tl.load(words_ptr + at)[None, :]
        else:
            words = tl.load(words_ptr + rows[:, None] * wq + at[None, :], mask=(rows[:, None] < Q) | WHOLE, other=0)
        R: tl.constexpr = M if BITS == 2 else 1
        # In the upper half of a word whose lower half the compiler does not know: it would compute with pairs of them
        # and take these apart again, in more steps.
        words = (words.to(tl.int32) << 16) | _zero(rescale).to(tl.int32, bitcast=True)
        words = tl.reshape(words, [R, N // BLOCK, 1, 4, 1])
        words = tl.reshape(tl.broadcast_to(words, [R, N // BLOCK, 8, 4, 2]), [R, N])
        bit = 16 + offsets % BLOCK // 8 * 2 + offsets % 2
        allowed = (words & (1 << bit)[None, :]) != 0
    return allowed


@triton.jit
def _masked_columns(  # type: ignore[no-untyped-def]
    x, words_ptr, rows, tile, Q, K, wq,
    M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, WHOLE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """`x`, [N, M], where a position attends, and -inf elsewhere."""
    offsets = tl.arange(0, N)
    if BITS == 0:
        if not WHOLE:
            x = tl.where((tile * N + offsets < K)[:, None], x, float("-inf"))
    else:
        at = tile * (N // 16) + tl.arange(0, N // 16)
        if BITS == 1:
            words = tl.load(words_ptr + at)[:, None]
        else:
            words = tl.load(words_ptr + rows[None, :] * wq + at[:, None], mask=(rows[None, :] < Q) | WHOLE, other=0)
        R: tl.constexpr = M if BITS == 2 else 1
        words = tl.reshape(words.to(tl.int32), [N // BLOCK, 1, 4, 1, R])
        words = tl.reshape(tl.broadcast_to(words, [N // BLOCK, 8, 4, 2, R]), [N, R])
        bit = (1 << (offsets % BLOCK // 8 * 2 + offsets % 2))[:, None]
        if ASM:
            given = [x, words, bit]
            x = tl.inline_asm_elementwise(CHOOSE, "=f,f,r,r", given, dtype=tl.float32, is_pure=True, pack=1)
        else:
            x = tl.where((words & bit) != 0, x, float("-inf"))
    return x


@triton.jit
def _row_words(key_ptr, b, h, pairs):  # type: ignore[no-untyped-def]
    """Return the words of pairs of rows: two rows that are 8 apart share one."""
    word = mix(tl.load(key_ptr).to(tl.uint32, bitcast=True) + b.to(tl.uint32) * GOLDEN)
    return mix(mix(word + h.to(tl.uint32) * GOLDEN) + pairs.to(tl.uint32) * GOLDEN)


@triton.jit
def _folded(product):  # type: ignore[no-untyped-def]
    """As in the reference."""
    return (product >> 32).to(tl.uint32) ^ product.to(tl.uint32)


@triton.jit
def _two_words(x, rescale):  # type: ignore[no-untyped-def]
    """As in the reference: two words from two products.

    The compiler does not see that the zero changes nothing: it would forget then that a factor has 32 bits.
    """
    mixed = _folded(x.to(tl.uint64) * MULTIPLY_1) ^ _zero(rescale).to(tl.uint32, bitcast=True)
    product = mixed.to(tl.uint64) * MULTIPLY_2
    return _folded(product), (product >> 16).to(tl.uint32) ^ mixed


@triton.jit
def _of_pairs(x, A: tl.constexpr, B: tl.constexpr):  # type: ignore[no-untyped-def]
    """Repeat [A / 2, B / 2] to [A, B], where rows that are 8 apart are the same, and so are columns.

    A thread holds all four positions of a pair of rows and a pair of columns in the result of a matrix product.
    """
    x = tl.reshape(x, [A // 16, 1, 8, B // 16, 1, 8])
    return tl.reshape(tl.broadcast_to(x, [A // 16, 2, 8, B // 16, 2, 8]), [A, B])


@triton.jit
def _is_second(A: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return which of A positions are the second of their pairs: 0 or 1."""
    return tl.arange(0, A) // 8 % 2


@triton.jit
def _kept_rows(row_words, tile, limit, rescale, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the weights of M rows and N keys that dropout keeps, [M, N]. `row_words` belong to M / 2 row pairs."""
    pairs = (tile * (N // 2) + tl.arange(0, N // 2)).to(tl.uint32)
    first, second = _two_words(row_words[:, None] + pairs[None, :] * GOLDEN, rescale)
    words = tl.where((_is_second(M) == 0)[:, None], _of_pairs(first, M, N), _of_pairs(second, M, N))
    return (words << (16 - _is_second(N) * 16).to(tl.uint32)[None, :]) > limit


@triton.jit
def _kept_columns(row_words, tile, limit, rescale, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the same, [N, M]."""
    pairs = (tile * (N // 2) + tl.arange(0, N // 2)).to(tl.uint32)
    first, second = _two_words(row_words[None, :] + pairs[:, None] * GOLDEN, rescale)
    words = tl.where((_is_second(M) == 0)[None, :], _of_pairs(first, N, M), _of_pairs(second, N, M))
    return (words << (16 - _is_second(N) * 16).to(tl.uint32)[:, None]) > limit


@triton.jit
def _zero(rescale):  # type: ignore[no-untyped-def]
    """Return 0, hidden from the compiler, which would otherwise convert weights to half before the choice."""
    return tl.minimum(rescale, 0.0)


@triton.jit
def _tiles(range_ptr, first, count, total, stride, SIZE: tl.constexpr, STEP: tl.constexpr, RANGES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the tiles of STEP positions, from … to, that the positions from `first` to `first + SIZE − 1` meet.

    `count` is the number of blocks of the former, whose ranges are at `range_ptr`; `total` is the number of the others.
    """
    start = 0
    end = tl.cdiv(total, STEP)
    if RANGES:
        low = tl.load(range_ptr + first // BLOCK * stride)
        high = tl.load(range_ptr + first // BLOCK * stride + 1)
        for block in tl.static_range(1, SIZE // BLOCK):
            in_bounds = first // BLOCK + block < count
            at = range_ptr + (first // BLOCK + block) * stride
            low_here = tl.load(at, mask=in_bounds, other=0)
            high_here = tl.load(at + 1, mask=in_bounds, other=0)
            # a block of which nothing attends has the range 0, 0
            low = tl.where(high_here == 0, low, tl.where(high == 0, low_here, tl.minimum(low, low_here)))
            high = tl.maximum(high, high_here)
        start = low * BLOCK // STEP
        end = tl.minimum(end, tl.cdiv(high * BLOCK, STEP))
    return start, end


@triton.jit
def _load(ptr, at, d, n, stride, width_stride, D: tl.constexpr, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows `at` of a matrix [n, D], 0 behind its end; `at` and `d` broadcast to the shape of the tile."""
    return tl.load(ptr + at * stride + d * width_stride, mask=((at < n) | WHOLE) & (d < D), other=0.0)


@triton.jit
def _columns(x, M: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the columns 0, 2, 1 and 3 of [M, 4]."""
    even, odd = tl.split(tl.reshape(x, [M, 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, third, second, fourth


@triton.jit(do_not_specialize_on_alignment=["drop_key_ptr"])
def forward_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, words_ptr, empty_ptr, range_ptr, drop_key_ptr, o_ptr, lse_ptr, draws_ptr,
    Q, K, HEADS, GROUP, scale, limit: tl.int64, rescale, q_blocks,
    qb, qh, qq: tl.constexpr, qd, kb, kh, kk: tl.constexpr, kd, vb, vh, vk: tl.constexpr, vd,
    ob, oh, oq, od, wb, wh, wq, eb, eh, eq, rb, rq,
    D: tl.constexpr, BLOCK_D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BITS: tl.constexpr, EMPTY: tl.constexpr, RANGES: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of M queries, B · H). `scale` is that of the scores in powers of two."""
    first = tl.program_id(0) * M
    b = (tl.program_id(1) // HEADS).to(tl.int64)
    h = (tl.program_id(1) % HEADS).to(tl.int64)
    k_ptr += b * kb + h // GROUP * kh
    v_ptr += b * vb + h // GROUP * vh
    words_ptr += b * wb + h * wh
    of_rows = tl.program_id(1).to(tl.int64) * Q
    rows = first + tl.arange(0, M)
    offsets = tl.arange(0, N)
    d = tl.arange(0, BLOCK_D)
    q = _load(q_ptr + b * qb + h * qh, rows[:, None], d[None, :], Q, qq, qd, D, WHOLE)
    if EMPTY:
        is_empty = tl.load(empty_ptr + b * eb + h * eh + rows * eq, mask=(rows < Q) | WHOLE, other=0) != 0
        q = tl.where(is_empty[:, None], 0.0, q).to(q_ptr.dtype.element_ty)
    if DROPOUT:
        draws = _row_words(drop_key_ptr, b, h, first // 2 + tl.arange(0, M // 2))
        of_row = _row_words(drop_key_ptr, b, h, rows // 16 * 8 + rows % 8)
        tl.store(draws_ptr + of_rows + rows, of_row.to(tl.int32, bitcast=True), mask=(rows < Q) | WHOLE)
    highest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    output = tl.zeros([M, BLOCK_D], tl.float32)
    start, end = _tiles(range_ptr + b * rb, first, q_blocks, K, rq, M, N, RANGES)
    for tile in range(start, end):
        keys = tl.multiple_of(tile * N, N) + offsets
        k = _load(k_ptr, keys[None, :], d[:, None], K, kk, kd, D, WHOLE)
        s = tl.dot(q, k, input_precision="ieee")
        allowed = _allowed_rows(words_ptr, rows, tile, Q, K, wq, rescale, M, N, BITS, WHOLE)
        s = tl.where(allowed, s, float("-inf"))
        new = tl.maximum(highest, tl.max(s, 1) * scale)
        base = tl.where(new == float("-inf"), 0.0, new)  # nothing attends yet
        p = tl.exp2(s * scale - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(p, 1)
        output = output * shrink[:, None]
        if DROPOUT:
            p = tl.where(_kept_rows(draws, tile, limit.to(tl.uint32), rescale, M, N), p, _zero(rescale))
        v = _load(v_ptr, keys[:, None], d[None, :], K, vk, vd, D, WHOLE)
        output = tl.dot(p.to(v.dtype), v, output, input_precision="ieee")
        highest = new
    nothing = total == 0.0
    output = output * (rescale / tl.where(nothing, 1.0, total))[:, None]
    # the weights of a row without a valid position are then 0 in the backward
    lse = tl.where(nothing, float("inf"), highest + tl.log2(tl.where(nothing, 1.0, total)))
    in_bounds = ((rows[:, None] < Q) | WHOLE) & (d[None, :] < D)
    at = o_ptr + b * ob + h * oh + rows[:, None] * oq + d[None, :] * od
    tl.store(at, output.to(o_ptr.dtype.element_ty), mask=in_bounds)
    tl.store(lse_ptr + of_rows + rows, lse, mask=(rows < Q) | WHOLE)


@triton.jit
def query_gradient_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, words_ptr, empty_ptr, range_ptr, draws_ptr, o_ptr, lse_ptr, g_ptr, dq_ptr, rows_ptr, mq_ptr,
    Q, K, HEADS, GROUP, scale, limit: tl.int64, rescale, q_blocks,
    qb, qh, qq: tl.constexpr, qd, kb, kh, kk: tl.constexpr, kd, vb, vh, vk: tl.constexpr, vd,
    ob, oh, oq, od, wb, wh, wq, eb, eh, eq, rb, rq,
    gb, gh, gq: tl.constexpr, gd, dqb, dqh, dqq, dqd, mqb, mqh, mqq, mqd,
    D: tl.constexpr, BLOCK_D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BITS: tl.constexpr, EMPTY: tl.constexpr, RANGES: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of M queries, B · H).

    Writes also what the other kernel reads: four numbers of each row, and with EMPTY the masked query, which is 0 in
    empty rows.
    """
    first = tl.program_id(0) * M
    b = (tl.program_id(1) // HEADS).to(tl.int64)
    h = (tl.program_id(1) % HEADS).to(tl.int64)
    k_ptr += b * kb + h // GROUP * kh
    v_ptr += b * vb + h // GROUP * vh
    words_ptr += b * wb + h * wh
    of_rows = tl.program_id(1).to(tl.int64) * Q
    rows = first + tl.arange(0, M)
    offsets = tl.arange(0, N)
    d = tl.arange(0, BLOCK_D)
    q = _load(q_ptr + b * qb + h * qh, rows[:, None], d[None, :], Q, qq, qd, D, WHOLE)
    g = _load(g_ptr + b * gb + h * gh, rows[:, None], d[None, :], Q, gq, gd, D, WHOLE)
    o = _load(o_ptr + b * ob + h * oh, rows[:, None], d[None, :], Q, oq, od, D, WHOLE)
    # Both gradients are multiplied by `rescale` at the end, so that this is divided by it.
    delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1) / rescale
    lse = tl.load(lse_ptr + of_rows + rows, mask=(rows < Q) | WHOLE, other=float("inf"))
    rows_ptr += (of_rows + rows) * 4
    if EMPTY:
        is_empty = tl.load(empty_ptr + b * eb + h * eh + rows * eq, mask=(rows < Q) | WHOLE, other=0) != 0
        q = tl.where(is_empty[:, None], 0.0, q).to(q_ptr.dtype.element_ty)
        at = mq_ptr + b * mqb + h * mqh + rows[:, None] * mqq + d[None, :] * mqd
        tl.store(at, q, mask=((rows[:, None] < Q) | WHOLE) & (d[None, :] < D))
    # negative, because the other kernel would change the signs of each column of each tile
    tl.store(rows_ptr, -lse, mask=(rows < Q) | WHOLE)
    tl.store(rows_ptr + 1, -delta, mask=(rows < Q) | WHOLE)
    if DROPOUT:
        of_row = tl.load(draws_ptr + of_rows + rows, mask=(rows < Q) | WHOLE, other=0)
        tl.store(rows_ptr + 3, of_row.to(tl.float32, bitcast=True), mask=(rows < Q) | WHOLE)
        pairs = first + tl.arange(0, M // 2) // 8 * 16 + tl.arange(0, M // 2) % 8  # the first rows of pairs
        draws = tl.load(draws_ptr + of_rows + pairs, mask=(pairs < Q) | WHOLE, other=0).to(tl.uint32, bitcast=True)
    gradient = tl.zeros([M, BLOCK_D], tl.float32)
    start, end = _tiles(range_ptr + b * rb, first, q_blocks, K, rq, M, N, RANGES)
    for tile in range(start, end):
        keys = tl.multiple_of(tile * N, N) + offsets
        k = _load(k_ptr, keys[:, None], d[None, :], K, kk, kd, D, WHOLE)
        v = _load(v_ptr, keys[:, None], d[None, :], K, vk, vd, D, WHOLE)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        allowed = _allowed_rows(words_ptr, rows, tile, Q, K, wq, rescale, M, N, BITS, WHOLE)
        p = tl.exp2(tl.where(allowed, s * scale - lse[:, None], float("-inf")))
        dp = tl.dot(g, tl.trans(v), input_precision="ieee")
        if DROPOUT:
            dp = tl.where(_kept_rows(draws, tile, limit.to(tl.uint32), rescale, M, N), dp, 0.0)
        ds = p * (dp - delta[:, None])
        gradient = tl.dot(ds.to(k.dtype), k, gradient, input_precision="ieee")
    gradient = gradient * (scale * rescale * LN_2)
    if EMPTY:
        gradient = tl.where(is_empty[:, None], 0.0, gradient)
    in_bounds = ((rows[:, None] < Q) | WHOLE) & (d[None, :] < D)
    at = dq_ptr + b * dqb + h * dqh + rows[:, None] * dqq + d[None, :] * dqd
    tl.store(at, gradient.to(dq_ptr.dtype.element_ty), mask=in_bounds)


@triton.jit
def key_value_gradient_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, words_ptr, rows_ptr, range_ptr, g_ptr, dk_ptr, dv_ptr,
    Q, K, HEADS, GROUP, scale, limit: tl.int64, rescale, k_blocks,
    qb, qh, qq: tl.constexpr, qd, kb, kh, kk: tl.constexpr, kd, vb, vh, vk: tl.constexpr, vd,
    wb, wh, wq, rb, rk,
    gb, gh, gq: tl.constexpr, gd, dkb, dkh, dkk, dkd, dvb, dvh, dvk, dvd,
    D: tl.constexpr, BLOCK_D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BITS: tl.constexpr, RANGES: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of N keys, B · G). Tiles are [keys, queries]. The heads that share a key come one after another."""
    first = tl.program_id(0) * N
    groups = HEADS // GROUP
    b = (tl.program_id(1) // groups).to(tl.int64)
    group = (tl.program_id(1) % groups).to(tl.int64)
    offsets = tl.arange(0, N)
    keys = first + offsets
    d = tl.arange(0, BLOCK_D)
    k = _load(k_ptr + b * kb + group * kh, keys[:, None], d[None, :], K, kk, kd, D, WHOLE)
    v = _load(v_ptr + b * vb + group * vh, keys[:, None], d[None, :], K, vk, vd, D, WHOLE)
    dk = tl.zeros([N, BLOCK_D], tl.float32)
    dv = tl.zeros([N, BLOCK_D], tl.float32)
    start, end = _tiles(range_ptr + b * rb, first, k_blocks, Q, rk, N, M, RANGES)
    for number in range(GROUP):
        h = group * GROUP + number
        of_rows = (b * HEADS + h) * Q
        for tile in range(start, end):
            rows = tl.multiple_of(tile * M, M) + tl.arange(0, M)
            q = _load(q_ptr + b * qb + h * qh, rows[:, None], d[None, :], Q, qq, qd, D, WHOLE)
            g = _load(g_ptr + b * gb + h * gh, rows[:, None], d[None, :], Q, gq, gd, D, WHOLE)
            at = rows_ptr + (of_rows + rows)[:, None] * 4 + tl.arange(0, 4)[None, :]
            # Rows that do not exist are zero, and so are the gradients that they give.
            minus_lse, _, minus_delta, draws = _columns(tl.load(at, mask=(rows[:, None] < Q) | WHOLE, other=0.0), M)
            s = tl.dot(k, tl.trans(q), input_precision="ieee")
            p = s * scale + minus_lse[None, :]
            words = words_ptr + b * wb + h * wh
            p = tl.exp2(_masked_columns(p, words, rows, tl.program_id(0), Q, K, wq, M, N, BITS, WHOLE, ASM))
            dp = tl.dot(v, tl.trans(g), input_precision="ieee")
            weights = p
            if DROPOUT:
                # rows that are 8 apart have the same word
                draws, _ = tl.split(tl.permute(tl.reshape(draws, [M // 16, 2, 8]), [0, 2, 1]))
                draws = tl.reshape(draws, [M // 2]).to(tl.uint32, bitcast=True)
                kept = _kept_columns(draws, tl.program_id(0), limit.to(tl.uint32), rescale, M, N)
                weights = tl.where(kept, p, _zero(rescale))
            dv = tl.dot(weights.to(g.dtype), g, dv, input_precision="ieee")
            # The weights stand for a choice between `dp` and 0: in fewer steps than p · (dp − δ) has with that choice.
            ds = weights * dp + p * minus_delta[None, :]
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    in_bounds = ((keys[:, None] < K) | WHOLE) & (d[None, :] < D)
    dk = dk * (scale * rescale * LN_2)
    at = dk_ptr + b * dkb + group * dkh + keys[:, None] * dkk + d[None, :] * dkd
    tl.store(at, dk.to(dk_ptr.dtype.element_ty), mask=in_bounds)
    at = dv_ptr + b * dvb + group * dvh + keys[:, None] * dvk + d[None, :] * dvd
    tl.store(at, (dv * rescale).to(dv_ptr.dtype.element_ty), mask=in_bounds)
