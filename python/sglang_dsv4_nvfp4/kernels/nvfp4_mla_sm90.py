"""Sparse MLA over NVFP4 pages on Hopper: two warpgroups multiply, one makes their tiles.

What :mod:`nvfp4_mla` does, in Gluon, where the work can be divided by hand. A program
serves one query token, 64 of its heads and one part of its candidates, 64 at a time:

    producer (4 warps)                     consumers (8 warps)
    copies packed rows to a stage, a       QK:  S = Q K^T, each warpgroup half of
    tile ahead                                  the candidates
    dequantizes them to BF16 into     ->   online softmax, P to shared memory
    one of two tiles in shared memory      PV:  O += P V, each warpgroup half of
    (:mod:`nvfp4_mla_sm90_tiles`)               the columns; V is the same tile

    shared memory: Q 64 KiB, two tiles of 64 KiB, the stage 24 KiB, P 8 KiB
    (and two rows of biases)

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/nvfp4_mla_sm90.py``.
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
from sglang_dsv4_nvfp4.kernels.nvfp4_mla_sm90_tiles import (
    BLOCK_N,
    LATENT_DIM,
    NUM_TILES,
    PRODUCER_WARPS,
    allocate_stage,
    produce,
)

BLOCK_H = gl.constexpr(64)
CONSUMER_WARPS = 8
# Registers a producer's thread may have; the consumers share what is left.
_PRODUCER_REGISTERS = gl.constexpr(104)

NOPE_DIM = gl.constexpr(layout.NOPE_DIM)
NOPE_UNIT = gl.constexpr(nvfp4_dequant.NOPE_UNIT.value)
LOG2_E = gl.constexpr(nvfp4_mla.LOG2_E.value)
LN_2 = gl.constexpr(nvfp4_mla.LN_2.value)

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
_SHARED_ROW = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def candidate_count(lengths_ptr, token, width, HAS_LENGTHS: gl.constexpr):
    count = width
    if HAS_LENGTHS:
        count = gl.maximum(gl.minimum(gl.load(lengths_ptr + token), width), 0)
    return count


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
def load_queries(q_shared, q_ptr, num_heads):
    """A token's heads as the tiles have their columns; zeros past the last head."""
    head = gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, _Q_LAYOUT))[:, None]
    column = gl.arange(0, LATENT_DIM, layout=gl.SliceLayout(0, _Q_LAYOUT))[None, :]
    q = gl.load(q_ptr + head * LATENT_DIM + column, mask=head < num_heads, other=0.0)
    unit = gl.where(column < NOPE_DIM, NOPE_UNIT, 1.0)
    q = (q.to(gl.float32) * unit).to(gl.bfloat16)
    q_shared.store(nope_columns_swapped(q, 2, 4))
    fence_async_shared()


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
    load_queries(q_shared, q_ptr, num_heads)
    row_max = gl.full((BLOCK_H,), float("-inf"), gl.float32, _HEADS_OF_S)
    no_logits = gl.zeros((BLOCK_H, BLOCK_N), gl.float32, _S_LAYOUT)
    # Each warpgroup sums its own candidates' weights until the end.
    sums = gl.sum(gl.reshape(no_logits, (BLOCK_H, 2, BLOCK_N // 2)), 2)
    out = gl.zeros((BLOCK_H, LATENT_DIM), gl.float32, _O_LAYOUT)
    for turn in range(num_blocks):
        index = turn % NUM_TILES
        tile = tiles.index(index)
        mbarrier.wait(full.index(index), (turn // NUM_TILES) & 1)
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


@gluon.jit
def finish_softmax(
    row_max,
    row_sum,
    first_head,
    num_heads,
    sink_ptr,
    lse_ptr,
    first_row,
    HAS_SINK: gl.constexpr,
):
    """Weights of the output rows; stores the natural-log LSE without the sink."""
    head = first_head + gl.arange(0, BLOCK_H, layout=_HEADS_OF_S)
    in_range = head < num_heads
    is_empty = row_sum == 0.0
    lse = gl.where(is_empty, float("-inf"), row_max + gl.log2(row_sum)) * LN_2
    gl.store(lse_ptr + first_row + head, lse, mask=in_range)
    denominator = row_sum
    if HAS_SINK:
        sink = gl.load(sink_ptr + head, mask=in_range, other=0.0) * LOG2_E
        denominator += gl.exp2(sink - gl.where(is_empty, 0.0, row_max))
    return gl.where(is_empty, 0.0, 1.0 / denominator)


@gluon.jit
def store_output(shared, out, weight, first_head, num_heads, output_ptr, first_row):
    """Through Q's shared memory into rows that a thread can reorder and store whole."""
    column = gl.arange(0, LATENT_DIM, layout=gl.SliceLayout(0, _O_LAYOUT))[None, :]
    unit = gl.where(column < NOPE_DIM, NOPE_UNIT, 1.0)
    out = out * (gl.convert_layout(weight, _HEADS_OF_O)[:, None] * unit)
    shared.store(out.to(gl.bfloat16))
    rows = nope_columns_swapped(shared.load(_Q_LAYOUT), 4, 2)
    head = first_head + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, _Q_LAYOUT))
    column = gl.arange(0, LATENT_DIM, layout=gl.SliceLayout(0, _Q_LAYOUT))[None, :]
    pointers = output_ptr + (first_row + head)[:, None] * LATENT_DIM + column
    gl.store(pointers, rows, mask=(head < num_heads)[:, None])


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
        gl.bfloat16, [NUM_TILES, BLOCK_N, LATENT_DIM], _SHARED_BF16
    )
    p_shared = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, BLOCK_N], _SHARED_BF16)
    biases = gl.allocate_shared_memory(gl.float32, [NUM_TILES, BLOCK_N], _SHARED_ROW)
    stage = allocate_stage()
    full = gl.allocate_shared_memory(
        gl.int64, [NUM_TILES, 1], mbarrier.MBarrierLayout()
    )
    empty = gl.allocate_shared_memory(
        gl.int64, [NUM_TILES, 1], mbarrier.MBarrierLayout()
    )
    for index in gl.static_range(NUM_TILES):
        mbarrier.init(full.index(index), count=1)
        mbarrier.init(empty.index(index), count=1)

    q_rows = q_ptr + token.to(gl.int64) * q_stride + first_head * LATENT_DIM
    candidates = (
        num_main,
        indices_ptr + token.to(gl.int64) * topk,
        extra_indices_ptr + token.to(gl.int64) * extra_topk,
        count,
        extra_count,
    )
    caches = (cache_ptr, extra_cache_ptr, page_stride, extra_page_stride)
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
                    q_rows,
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
                    stage,
                    full,
                    empty,
                    first_block,
                    end_block,
                    candidates,
                    caches,
                    PAGE_SIZE,
                    EXTRA_PAGE_SIZE,
                ),
            ),
        ],
        [PRODUCER_WARPS],
        [_PRODUCER_REGISTERS],
    )
    first_row = (split * num_tokens + token).to(gl.int64) * num_heads
    weight = finish_softmax(
        row_max, row_sum, first_head, num_heads, sink_ptr, lse_ptr, first_row, HAS_SINK
    )
    store_output(q_shared, out, weight, first_head, num_heads, output_ptr, first_row)
