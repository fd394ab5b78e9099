"""Sparse MLA over NVFP4 pages on Hopper: two warpgroups multiply, one makes their tiles.

What :mod:`nvfp4_mla` does, in Gluon, where the work can be divided by hand. A program
serves one query token, 64 of its heads and one part of its candidates, 64 at a time:

    producer (4 warps)                     consumers (8 warps)
    loads packed rows into registers,      QK:  S = Q K^T, each warpgroup half of
    half a tile ahead                           the candidates
    dequantizes them to BF16 into     ->   online softmax, P to shared memory
    one of two tiles in shared memory      PV:  O += P V, each warpgroup half of
                                                the columns; V is the same tile

    shared memory: Q 64 KiB, two tiles of 64 KiB, P 8 KiB (and two rows of biases)

The producer takes 32 rows a pass, four lanes a row. A tile's row is eight blocks of 128
bytes, seven NoPE and one RoPE; of each block a lane owns 32 bytes, for NoPE one group of
16. The eight lanes of a shared-memory phase then write to different banks.

In-tree: ``sglang/kernels/ops/attention/dsv4/nvfp4_mla_sm90.py``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sglang_dsv4_nvfp4 import layout
from sglang_dsv4_nvfp4.kernels import nvfp4_dequant, nvfp4_mla

BLOCK_H = gl.constexpr(64)
BLOCK_N = gl.constexpr(64)
CONSUMER_WARPS = 8
# Registers a producer's thread may have; the consumers share what is left.
_PRODUCER_REGISTERS = gl.constexpr(128)
_PRODUCER_WARPS = gl.constexpr(4)
_NUM_TILES = gl.constexpr(2)
_HALF = gl.constexpr(BLOCK_N.value // 2)

LATENT_DIM = gl.constexpr(layout.LATENT_DIM)
NOPE_DIM = gl.constexpr(layout.NOPE_DIM)
DATA_BYTES = gl.constexpr(layout.DATA_BYTES)
SCALE_BYTES = gl.constexpr(layout.SCALE_BYTES)
NOPE_WORDS = gl.constexpr(layout.NOPE_BYTES // 4)
NOPE_UNIT = gl.constexpr(nvfp4_dequant.NOPE_UNIT.value)
SCALE_FACTOR = gl.constexpr(nvfp4_dequant.SCALE_FACTOR.value)
DECODE = gl.constexpr(nvfp4_dequant.DECODE_PAIRS.value)
DECODE_CONSTRAINTS = gl.constexpr(nvfp4_dequant.DECODE_PAIRS_CONSTRAINTS.value)
LOG2_E = gl.constexpr(nvfp4_mla.LOG2_E.value)
LN_2 = gl.constexpr(nvfp4_mla.LN_2.value)

# Lane bases of the producer: two bits for the lanes of a row, three for the row.
_ROW_LANES = [[1, 0], [2, 0], [4, 0]]
_ROW_WARPS = [[8, 0], [16, 0]]
# A group a lane; its 32 bytes as int32; and a row's scales, in each of its lanes.
_GROUPS = gl.constexpr(
    gl.DistributedLinearLayout(
        [], [[0, 1], [0, 2], *_ROW_LANES], _ROW_WARPS, [], [_HALF.value, 4]
    )
)
_BLOCK = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4]],
        [[0, 8], [0, 16], *_ROW_LANES],
        _ROW_WARPS,
        [],
        [_HALF.value, 32],
    )
)
_SCALES = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4]],
        [[0, 0], [0, 0], *_ROW_LANES],
        _ROW_WARPS,
        [],
        [_HALF.value, 8],
    )
)
_ROWS = gl.constexpr(gl.SliceLayout(1, _GROUPS.value))
# 64 heads by four warps; two warpgroups share the other dimension.
_S_LAYOUT = gl.constexpr(
    gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_N.value // 2, 16])
)
_O_LAYOUT = gl.constexpr(
    gl.NVMMADistributedLayout([3, 0], [4, 2], [16, LATENT_DIM.value // 2, 16])
)
_HEADS_OF_S = gl.constexpr(gl.SliceLayout(1, _S_LAYOUT.value))
_HEADS_OF_O = gl.constexpr(gl.SliceLayout(1, _O_LAYOUT.value))
_Q_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [CONSUMER_WARPS, 1], [1, 0]))
_SHARED_BF16 = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
_SHARED_INT32 = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))
_SHARED_ROW = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def candidate_count(lengths_ptr, token, width, HAS_LENGTHS: gl.constexpr):
    count = width
    if HAS_LENGTHS:
        count = gl.maximum(gl.minimum(gl.load(lengths_ptr + token), width), 0)
    return count


@gluon.jit
def half_slots(
    block, num_main, main_ptr, extra_ptr, count, extra_count, FIRST: gl.constexpr
):
    """int32 slots of half a block's candidates, -1 where there is none."""
    is_main = block < num_main
    first = gl.where(is_main, block, block - num_main) * BLOCK_N + FIRST
    position = first + gl.arange(0, _HALF, layout=_ROWS)
    limit = gl.where(is_main, count, extra_count)
    base = gl.where(is_main, main_ptr, extra_ptr)
    return gl.load(base + position, mask=position < limit, other=-1)


@gluon.jit
def row_pointers(
    slot,
    is_main,
    cache_ptr,
    extra_cache_ptr,
    page_stride,
    extra_page_stride,
    PAGE_SIZE: gl.constexpr,
    EXTRA_PAGE_SIZE: gl.constexpr,
):
    """Data rows and scale rows of slots."""
    slot = gl.maximum(slot, 0)
    page = gl.where(is_main, slot // PAGE_SIZE, slot // EXTRA_PAGE_SIZE)
    entry = gl.where(is_main, slot % PAGE_SIZE, slot % EXTRA_PAGE_SIZE)
    page_size = gl.where(is_main, PAGE_SIZE, EXTRA_PAGE_SIZE)
    stride = gl.where(is_main, page_stride, extra_page_stride)
    base = gl.where(is_main, cache_ptr, extra_cache_ptr)
    start = page.to(gl.int64) * stride
    data = gl.multiple_of(start + entry * DATA_BYTES, 16)
    scale = start + page_size * DATA_BYTES + entry * SCALE_BYTES
    return base + data, base + gl.multiple_of(scale, 16)


@gluon.jit
def load_columns(
    rows, valid, dtype: gl.constexpr, FIRST: gl.constexpr, LAYOUT: gl.constexpr
):
    """A tile of each row's elements from ``FIRST`` on, zeros where not valid."""
    ROWS: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    width: gl.constexpr = LAYOUT.shape[1]
    column = FIRST + gl.arange(0, width, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    rows = gl.convert_layout(rows, ROWS, assert_trivial=True)
    mask = gl.convert_layout(valid, ROWS, assert_trivial=True)[:, None]
    pointers = gl.multiple_of(rows, 16)[:, None]
    pointers = pointers.to(gl.pointer_type(dtype), bitcast=True)
    return gl.load(pointers + column, mask=mask, other=0)


@gluon.jit
def load_rows(
    slot,
    is_main,
    cache_ptr,
    extra_cache_ptr,
    page_stride,
    extra_page_stride,
    PAGE_SIZE: gl.constexpr,
    EXTRA_PAGE_SIZE: gl.constexpr,
):
    """Everything that 32 rows have: seven blocks of groups, RoPE, scales, bias.

    The bias is what masks a candidate: added to its logits, 0 or -inf.
    """
    valid = slot >= 0
    data, scale = row_pointers(
        slot,
        is_main,
        cache_ptr,
        extra_cache_ptr,
        page_stride,
        extra_page_stride,
        PAGE_SIZE,
        EXTRA_PAGE_SIZE,
    )
    return (
        load_columns(data, valid, gl.int64, 0, _GROUPS),
        load_columns(data, valid, gl.int64, 4, _GROUPS),
        load_columns(data, valid, gl.int64, 8, _GROUPS),
        load_columns(data, valid, gl.int64, 12, _GROUPS),
        load_columns(data, valid, gl.int64, 16, _GROUPS),
        load_columns(data, valid, gl.int64, 20, _GROUPS),
        load_columns(data, valid, gl.int64, 24, _GROUPS),
        load_columns(data, valid, gl.int32, NOPE_WORDS, _BLOCK),
        load_columns(scale, valid, gl.int32, 0, _SCALES),
        gl.where(valid, 0.0, float("-inf")),
    )


@gluon.jit
def decode(words, scale_words):
    """A block of groups to ``[32, 32]`` int32, two BF16 values each, in pair order.

    scale_words: ``[32]`` int32, the four scales of the block's groups, a byte each.
    """
    lane = gl.arange(0, 4, layout=gl.SliceLayout(0, _GROUPS))[None, :]
    codes = gl.convert_layout(scale_words, _ROWS)[:, None] >> (8 * lane)
    scales = codes.to(gl.uint8).to(gl.float8e4nv, bitcast=True).to(gl.float32)
    bits = (scales * SCALE_FACTOR).to(gl.int32, bitcast=True)
    twice = (bits & -65536) | ((bits >> 16) & 0xFFFF)
    p0, p1, p2, p3, p4, p5, p6, p7 = gl.inline_asm_elementwise(
        DECODE,
        DECODE_CONSTRAINTS,
        [words, twice],
        dtype=(
            gl.int32,
            gl.int32,
            gl.int32,
            gl.int32,
            gl.int32,
            gl.int32,
            gl.int32,
            gl.int32,
        ),
        is_pure=True,
        pack=1,
    )
    # Each join adds the index's next lower bit as a dimension: no value moves.
    even = gl.join(gl.join(p0, p4), gl.join(p2, p6))
    odd = gl.join(gl.join(p1, p5), gl.join(p3, p7))
    pairs = gl.reshape(gl.join(even, odd), (_HALF, 32))
    return gl.convert_layout(pairs, _BLOCK, assert_trivial=True)


@gluon.jit
def four_blocks(a, b, c, d):
    blocks = gl.join(gl.join(a, c), gl.join(b, d))
    return gl.reshape(gl.permute(blocks, (0, 2, 3, 1)), (_HALF, 128))


@gluon.jit
def write_half(tile, b0, b1, b2, b3, b4, b5, b6, rope, scales):
    """Dequantize 32 rows into ``tile``, ``[32, 256]`` int32 of shared memory."""
    even, odd = gl.split(gl.reshape(scales, (_HALF, 2, 2, 2)))
    s04, s26 = gl.split(even)
    s15, s37 = gl.split(odd)
    s0, s4 = gl.split(s04)
    s2, s6 = gl.split(s26)
    s1, s5 = gl.split(s15)
    s3, _ = gl.split(s37)
    first = four_blocks(decode(b0, s0), decode(b1, s1), decode(b2, s2), decode(b3, s3))
    tile.slice(0, 128, dim=1).store(first)
    last = four_blocks(decode(b4, s4), decode(b5, s5), decode(b6, s6), rope)
    tile.slice(128, 128, dim=1).store(last)


@gluon.jit
def produce(
    tiles,
    biases,
    full,
    empty,
    first_block,
    end_block,
    num_main,
    indices_ptr,
    extra_indices_ptr,
    count,
    extra_count,
    cache_ptr,
    extra_cache_ptr,
    page_stride,
    extra_page_stride,
    PAGE_SIZE: gl.constexpr,
    EXTRA_PAGE_SIZE: gl.constexpr,
):
    """Fill the tiles of blocks ``first_block`` to ``end_block``, one after the other.

    While one half is dequantized the next half's rows travel, and the slots of the one
    after that. Past the last block there are no candidates, and nothing is read.
    """
    top = half_slots(
        first_block, num_main, indices_ptr, extra_indices_ptr, count, extra_count, 0
    )
    slot = half_slots(
        first_block, num_main, indices_ptr, extra_indices_ptr, count, extra_count, _HALF
    )
    a0, a1, a2, a3, a4, a5, a6, a_rope, a_scales, a_bias = load_rows(
        top,
        first_block < num_main,
        cache_ptr,
        extra_cache_ptr,
        page_stride,
        extra_page_stride,
        PAGE_SIZE,
        EXTRA_PAGE_SIZE,
    )
    for block in range(first_block, end_block):
        turn = block - first_block
        index = turn % _NUM_TILES
        phase = (turn // _NUM_TILES) & 1
        tile = tiles.index(index)._reinterpret(
            gl.int32, [BLOCK_N, LATENT_DIM // 2], _SHARED_INT32
        )
        bias = biases.index(index)
        b0, b1, b2, b3, b4, b5, b6, b_rope, b_scales, b_bias = load_rows(
            slot,
            block < num_main,
            cache_ptr,
            extra_cache_ptr,
            page_stride,
            extra_page_stride,
            PAGE_SIZE,
            EXTRA_PAGE_SIZE,
        )
        slot = half_slots(
            block + 1, num_main, indices_ptr, extra_indices_ptr, count, extra_count, 0
        )
        mbarrier.wait(empty.index(index), phase ^ 1)
        bias.slice(0, _HALF).store(a_bias)
        write_half(
            tile.slice(0, _HALF, dim=0), a0, a1, a2, a3, a4, a5, a6, a_rope, a_scales
        )
        a0, a1, a2, a3, a4, a5, a6, a_rope, a_scales, a_bias = load_rows(
            slot,
            block + 1 < num_main,
            cache_ptr,
            extra_cache_ptr,
            page_stride,
            extra_page_stride,
            PAGE_SIZE,
            EXTRA_PAGE_SIZE,
        )
        slot = half_slots(
            block + 1,
            num_main,
            indices_ptr,
            extra_indices_ptr,
            count,
            extra_count,
            _HALF,
        )
        bias.slice(_HALF, _HALF).store(b_bias)
        write_half(
            tile.slice(_HALF, _HALF, dim=0),
            b0,
            b1,
            b2,
            b3,
            b4,
            b5,
            b6,
            b_rope,
            b_scales,
        )
        fence_async_shared()
        mbarrier.arrive(full.index(index), count=1)


@gluon.jit
def nope_columns_swapped(tile, FROM: gl.constexpr, TO: gl.constexpr):
    """``[64, 512]`` with its NoPE columns put into pair order (2, 4) or back (4, 2)."""
    rows: gl.constexpr = tile.shape[0]
    bits = gl.reshape(tile, (rows, LATENT_DIM // 8, FROM, TO))
    swapped = gl.reshape(gl.permute(bits, (0, 1, 3, 2)), (rows, LATENT_DIM))
    swapped = gl.convert_layout(swapped, _Q_LAYOUT)
    column = gl.arange(0, LATENT_DIM, layout=gl.SliceLayout(0, _Q_LAYOUT))[None, :]
    return gl.where(column < NOPE_DIM, swapped, tile)


@gluon.jit
def consume(
    q_shared,
    tiles,
    p_shared,
    biases,
    full,
    empty,
    q_ptr,
    num_heads,
    num_blocks,
    logit_scale,
):
    """Attend over the tiles. Returns O, the sums of the weights and the largest logits.

    ``q_ptr`` is the first of ``num_heads`` query rows; logits are in base 2.
    """
    head = gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, _Q_LAYOUT))[:, None]
    column = gl.arange(0, LATENT_DIM, layout=gl.SliceLayout(0, _Q_LAYOUT))[None, :]
    q = gl.load(q_ptr + head * LATENT_DIM + column, mask=head < num_heads, other=0.0)
    unit = gl.where(column < NOPE_DIM, NOPE_UNIT, 1.0)
    q = (q.to(gl.float32) * unit).to(gl.bfloat16)
    q_shared.store(nope_columns_swapped(q, 2, 4))
    fence_async_shared()

    row_max = gl.full((BLOCK_H,), float("-inf"), gl.float32, _HEADS_OF_S)
    no_logits = gl.zeros((BLOCK_H, BLOCK_N), gl.float32, _S_LAYOUT)
    # Each warpgroup sums its own candidates' weights until the end.
    sums = gl.sum(gl.reshape(no_logits, (BLOCK_H, 2, BLOCK_N // 2)), 2)
    out = gl.zeros((BLOCK_H, LATENT_DIM), gl.float32, _O_LAYOUT)
    for turn in range(num_blocks):
        index = turn % _NUM_TILES
        tile = tiles.index(index)
        mbarrier.wait(full.index(index), (turn // _NUM_TILES) & 1)
        logits = warpgroup_mma(
            q_shared, tile.permute((1, 0)), no_logits, use_acc=False, is_async=True
        )
        bias = biases.index(index).load(gl.SliceLayout(0, _S_LAYOUT))
        logits = warpgroup_mma_wait(0, deps=[logits])
        logits = logits * logit_scale + bias[None, :]
        new_max = gl.maximum(row_max, gl.max(logits, 1))
        # -inf - (-inf) would be NaN: a row without candidates so far subtracts 0.
        shift = gl.where(new_max == float("-inf"), 0.0, new_max)
        rescale = gl.exp2(row_max - shift)
        weights = gl.exp2(logits - shift[:, None])
        added = gl.sum(gl.reshape(weights, (BLOCK_H, 2, BLOCK_N // 2)), 2)
        heads_of_sums: gl.constexpr = gl.SliceLayout(1, added.type.layout)
        sums = sums * gl.convert_layout(rescale, heads_of_sums)[:, None] + added
        row_max = new_max
        p_shared.store(weights.to(gl.bfloat16))
        out = out * gl.convert_layout(rescale, _HEADS_OF_O)[:, None]
        fence_async_shared()
        out = warpgroup_mma(p_shared, tile, out, is_async=True)
        out = warpgroup_mma_wait(0, deps=[out])
        mbarrier.arrive(empty.index(index), count=1)
    return out, gl.convert_layout(gl.sum(sums, 1), _HEADS_OF_S), row_max


@gluon.jit(do_not_specialize=nvfp4_mla.NOT_SPECIALIZED)
def sparse_mla_kernel(
    q_ptr,
    cache_ptr,
    indices_ptr,
    lengths_ptr,
    extra_cache_ptr,
    extra_indices_ptr,
    extra_lengths_ptr,
    sink_ptr,
    output_ptr,
    lse_ptr,
    q_stride,
    page_stride,
    extra_page_stride,
    topk,
    extra_topk,
    num_tokens,
    num_heads,
    num_splits,
    softmax_scale,
    PAGE_SIZE: gl.constexpr,
    EXTRA_PAGE_SIZE: gl.constexpr,
    HAS_LENGTHS: gl.constexpr,
    HAS_EXTRA_LENGTHS: gl.constexpr,
    HAS_SINK: gl.constexpr,
):
    """Grid and results as :func:`nvfp4_mla.sparse_mla_kernel`, with 64 heads a block."""
    token = gl.program_id(1)
    split = gl.program_id(2)
    first_head = gl.program_id(0) * BLOCK_H
    count = candidate_count(lengths_ptr, token, topk, HAS_LENGTHS)
    extra_count = candidate_count(
        extra_lengths_ptr, token, extra_topk, HAS_EXTRA_LENGTHS
    )
    num_main = gl.cdiv(count, BLOCK_N)
    num_blocks = num_main + gl.cdiv(extra_count, BLOCK_N)
    first_block = num_blocks * split // num_splits
    end_block = num_blocks * (split + 1) // num_splits

    q_shared = gl.allocate_shared_memory(
        gl.bfloat16, [BLOCK_H, LATENT_DIM], _SHARED_BF16
    )
    tiles = gl.allocate_shared_memory(
        gl.bfloat16, [_NUM_TILES, BLOCK_N, LATENT_DIM], _SHARED_BF16
    )
    p_shared = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, BLOCK_N], _SHARED_BF16)
    biases = gl.allocate_shared_memory(gl.float32, [_NUM_TILES, BLOCK_N], _SHARED_ROW)
    full = gl.allocate_shared_memory(
        gl.int64, [_NUM_TILES, 1], mbarrier.MBarrierLayout()
    )
    empty = gl.allocate_shared_memory(
        gl.int64, [_NUM_TILES, 1], mbarrier.MBarrierLayout()
    )
    for index in gl.static_range(_NUM_TILES):
        mbarrier.init(full.index(index), count=1)
        mbarrier.init(empty.index(index), count=1)

    out, row_sum, row_max = gl.warp_specialize(
        [
            (
                consume,
                (
                    q_shared,
                    tiles,
                    p_shared,
                    biases,
                    full,
                    empty,
                    q_ptr + token.to(gl.int64) * q_stride + first_head * LATENT_DIM,
                    num_heads - first_head,
                    end_block - first_block,
                    softmax_scale * LOG2_E,
                ),
            ),
            (
                produce,
                (
                    tiles,
                    biases,
                    full,
                    empty,
                    first_block,
                    end_block,
                    num_main,
                    indices_ptr + token.to(gl.int64) * topk,
                    extra_indices_ptr + token.to(gl.int64) * extra_topk,
                    count,
                    extra_count,
                    cache_ptr,
                    extra_cache_ptr,
                    page_stride,
                    extra_page_stride,
                    PAGE_SIZE,
                    EXTRA_PAGE_SIZE,
                ),
            ),
        ],
        [_PRODUCER_WARPS],
        [_PRODUCER_REGISTERS],
    )

    head = first_head + gl.arange(0, BLOCK_H, layout=_HEADS_OF_S)
    in_range = head < num_heads
    is_empty = row_sum == 0.0
    lse = gl.where(is_empty, float("-inf"), row_max + gl.log2(row_sum)) * LN_2
    first_row = (split * num_tokens + token).to(gl.int64) * num_heads
    gl.store(lse_ptr + first_row + head, lse, mask=in_range)
    denominator = row_sum
    if HAS_SINK:
        sink = gl.load(sink_ptr + head, mask=in_range, other=0.0) * LOG2_E
        denominator += gl.exp2(sink - gl.where(is_empty, 0.0, row_max))
    weight = gl.where(is_empty, 0.0, 1.0 / denominator)
    column = gl.arange(0, LATENT_DIM, layout=gl.SliceLayout(0, _O_LAYOUT))[None, :]
    unit = gl.where(column < NOPE_DIM, NOPE_UNIT, 1.0)
    out = out * (gl.convert_layout(weight, _HEADS_OF_O)[:, None] * unit)
    # Through Q's shared memory into rows that a thread can reorder and store whole.
    q_shared.store(out.to(gl.bfloat16))
    rows = nope_columns_swapped(q_shared.load(_Q_LAYOUT), 4, 2)
    head = first_head + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, _Q_LAYOUT))
    column = gl.arange(0, LATENT_DIM, layout=gl.SliceLayout(0, _Q_LAYOUT))[None, :]
    pointers = output_ptr + (first_row + head)[:, None] * LATENT_DIM + column
    gl.store(pointers, rows, mask=(head < num_heads)[:, None])
