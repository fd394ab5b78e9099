"""Sparse MLA over NVFP4 pages, on any NVIDIA GPU that multiplies BF16 (sm_80 and later).

A program serves one query token, ``BLOCK_H`` of its heads, and one of ``num_splits``
parts of its candidates. It walks over blocks of ``BLOCK_N`` candidates: first the main
cache's, then the extra cache's, never both in one block. Per candidate it reads 352 bytes
of data and 28 of scales, once for all its heads; per block it makes BF16 tiles in
registers, puts them into shared memory, and reads them from there twice, for QK and for
PV. The next block's bytes, and the slots of the one after it, travel meanwhile.

Arguments that travel together are tuples::

    candidates  (blocks of the main cache, its indices, the extra cache's indices, how
                 many count of each)
    caches      (main cache, extra cache, and the bytes of a page of each)

The 448 NoPE columns are tiles of 256, 128 and 64, the RoPE columns a tile of 64: powers of
two, and nothing is padded. Online softmax in base 2, FP32 accumulators.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/nvfp4_mla.py``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sglang_dsv4_nvfp4.kernels.nvfp4_dequant import (
    NOPE_UNIT,
    decode_groups,
    from_pair_order,
    to_pair_order,
)
from sglang_dsv4_nvfp4.kernels.nvfp4_rows import (
    DATA_BYTES,
    LATENT_DIM,
    NOPE_BYTES,
    NOPE_DIM,
    SCALE_BYTES,
    decode_e4m3,
)

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
ROPE_DIM = tl.constexpr(LATENT_DIM.value - NOPE_DIM.value)
# NoPE tiles: groups before each, and groups in it.
GROUPS_A = tl.constexpr(16)
GROUPS_B = tl.constexpr(8)
GROUPS_C = tl.constexpr(4)
FIRST_B = tl.constexpr(16)
FIRST_C = tl.constexpr(24)


@triton.jit
def candidate_count(lengths_ptr, token, width, HAS_LENGTHS: tl.constexpr):
    """How many of ``width`` indices of a query count."""
    if HAS_LENGTHS:
        return tl.maximum(tl.minimum(tl.load(lengths_ptr + token), width), 0)
    return width


@triton.jit
def block_slots(block, candidates, BLOCK_N: tl.constexpr):
    """int32 slots of a block's candidates, -1 where there is none."""
    num_main, main_ptr, extra_ptr, count, extra_count = candidates
    is_main = block < num_main
    first = tl.where(is_main, block, block - num_main) * BLOCK_N
    position = first + tl.arange(0, BLOCK_N)
    limit = tl.where(is_main, count, extra_count)
    base = main_ptr if is_main else extra_ptr
    return tl.load(base + position, mask=position < limit, other=-1)


@triton.jit
def row_addresses(
    slot, is_main, caches, PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr
):
    """The block's cache, and byte offsets of its data rows and scale rows."""
    cache_ptr, extra_cache_ptr, page_stride, extra_page_stride = caches
    slot = tl.maximum(slot, 0)
    page = tl.where(is_main, slot // PAGE_SIZE, slot // EXTRA_PAGE_SIZE)
    entry = tl.where(is_main, slot % PAGE_SIZE, slot % EXTRA_PAGE_SIZE)
    page_size = tl.where(is_main, PAGE_SIZE, EXTRA_PAGE_SIZE)
    start = page.to(tl.int64) * tl.where(is_main, page_stride, extra_page_stride)
    base = cache_ptr if is_main else extra_cache_ptr
    data = start + entry * DATA_BYTES
    scale = start + page_size * DATA_BYTES + entry * SCALE_BYTES
    return base, tl.multiple_of(data, 16), tl.multiple_of(scale, 16)


@triton.jit
def load_groups(base, data, scale, valid, FIRST: tl.constexpr, GROUPS: tl.constexpr):
    """``[n, GROUPS]`` words of 16 codes (int64), and their scale bytes."""
    group = FIRST + tl.arange(0, GROUPS)[None, :]
    rows = (base + data[:, None]).to(tl.pointer_type(tl.int64))
    words = tl.load(rows + group, mask=valid[:, None], other=0)
    codes = tl.load(base + scale[:, None] + group, mask=valid[:, None], other=0)
    return words, codes


@triton.jit
def load_rope(base, data, valid):
    """``[n, 64]`` BF16 RoPE values."""
    column = tl.arange(0, ROPE_DIM)[None, :]
    rows = (base + data[:, None] + NOPE_BYTES).to(tl.pointer_type(tl.bfloat16))
    return tl.load(rows + column, mask=valid[:, None], other=0.0)


@triton.jit
def load_rows(
    slot, is_main, caches, PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr
):
    """A block's rows as they are stored: three NoPE tiles, the RoPE tile, and which of
    the rows count."""
    valid = slot >= 0
    base, data, scale = row_addresses(slot, is_main, caches, PAGE_SIZE, EXTRA_PAGE_SIZE)
    words_a, codes_a = load_groups(base, data, scale, valid, 0, GROUPS_A)
    words_b, codes_b = load_groups(base, data, scale, valid, FIRST_B, GROUPS_B)
    words_c, codes_c = load_groups(base, data, scale, valid, FIRST_C, GROUPS_C)
    rope = load_rope(base, data, valid)
    return words_a, codes_a, words_b, codes_b, words_c, codes_c, rope, valid


@triton.jit
def decode_tile(words, codes, INTERPRETED: tl.constexpr):
    return decode_groups(words, decode_e4m3(codes.to(tl.int32)), INTERPRETED)


@triton.jit
def multiply(a, b, accumulator, INTERPRETED: tl.constexpr):
    """BF16 ``a @ b + accumulator`` on tensor cores, in FP32."""
    if INTERPRETED:
        # The interpreter would multiply the bits of BF16 numbers as integers.
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator)
    return tl.dot(a, b, accumulator)


@triton.jit
def load_queries(rows_ptr, mask, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """``[BLOCK_H, WIDTH]`` query columns as the NoPE tiles have theirs."""
    column = FIRST + tl.arange(0, WIDTH)[None, :]
    queries = tl.load(rows_ptr + column, mask=mask, other=0.0).to(tl.float32)
    return to_pair_order((queries * NOPE_UNIT).to(tl.bfloat16))


@triton.jit
def store_output(rows_ptr, mask, output, FIRST: tl.constexpr):
    column = FIRST + tl.arange(0, output.shape[1])[None, :]
    tl.store(rows_ptr + column, output.to(tl.bfloat16), mask=mask)


@triton.jit
def finish_softmax(row_max, row_sum, sink, HAS_SINK: tl.constexpr):
    """Weights of the output rows, and the natural-log LSE without the sink.

    The sink is a logit that has no value: it only adds to the denominator.
    """
    empty = row_sum == 0.0
    row_sum = tl.where(empty, 1.0, row_sum)
    lse = tl.where(empty, float("-inf"), row_max + tl.log2(row_sum)) * LN_2
    denominator = row_sum
    if HAS_SINK:
        denominator += tl.exp2(sink * LOG2_E - tl.where(empty, 0.0, row_max))
    return tl.where(empty, 0.0, 1.0 / denominator), lse


# Values that change from call to call must not bring a compilation each.
NOT_SPECIALIZED = ("topk", "extra_topk", "num_tokens", "num_heads", "num_splits")


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
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
    PAGE_SIZE: tl.constexpr,
    EXTRA_PAGE_SIZE: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    HAS_EXTRA_LENGTHS: tl.constexpr,
    HAS_SINK: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Grid ``(head blocks, tokens, num_splits)``.

    With one split ``output_ptr`` and ``lse_ptr`` are the results. With more they hold
    one partial result a split, ``[num_splits, tokens, heads, ...]``, normalized on its
    own and without the sink, for :func:`merge_kernel`.
    """
    token = tl.program_id(1)
    split = tl.program_id(2)
    count = candidate_count(lengths_ptr, token, topk, HAS_LENGTHS)
    extra_count = candidate_count(
        extra_lengths_ptr, token, extra_topk, HAS_EXTRA_LENGTHS
    )
    num_main = tl.cdiv(count, BLOCK_N)
    num_blocks = num_main + tl.cdiv(extra_count, BLOCK_N)
    first_block = num_blocks * split // num_splits
    end_block = num_blocks * (split + 1) // num_splits
    candidates = (
        num_main,
        indices_ptr + token.to(tl.int64) * topk,
        extra_indices_ptr + token.to(tl.int64) * extra_topk,
        count,
        extra_count,
    )
    caches = (cache_ptr, extra_cache_ptr, page_stride, extra_page_stride)

    heads = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    head_mask = (heads < num_heads)[:, None]
    q_rows = q_ptr + token.to(tl.int64) * q_stride + heads[:, None] * LATENT_DIM
    q_a = load_queries(q_rows, head_mask, 0, GROUPS_A * 16)
    q_b = load_queries(q_rows, head_mask, FIRST_B * 16, GROUPS_B * 16)
    q_c = load_queries(q_rows, head_mask, FIRST_C * 16, GROUPS_C * 16)
    rope_columns = NOPE_DIM + tl.arange(0, ROPE_DIM)[None, :]
    q_rope = tl.load(q_rows + rope_columns, mask=head_mask, other=0.0)

    row_max = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_H,), tl.float32)
    out_a = tl.zeros((BLOCK_H, GROUPS_A * 16), tl.float32)
    out_b = tl.zeros((BLOCK_H, GROUPS_B * 16), tl.float32)
    out_c = tl.zeros((BLOCK_H, GROUPS_C * 16), tl.float32)
    out_rope = tl.zeros((BLOCK_H, ROPE_DIM), tl.float32)
    no_logits = tl.zeros((BLOCK_H, BLOCK_N), tl.float32)

    slot = block_slots(first_block, candidates, BLOCK_N)
    is_main = first_block < num_main
    rows = load_rows(slot, is_main, caches, PAGE_SIZE, EXTRA_PAGE_SIZE)
    slot = block_slots(first_block + 1, candidates, BLOCK_N)
    for block in range(first_block, end_block):
        words_a, codes_a, words_b, codes_b, words_c, codes_c, v_rope, counted = rows
        k_a = decode_tile(words_a, codes_a, INTERPRETED)
        k_b = decode_tile(words_b, codes_b, INTERPRETED)
        k_c = decode_tile(words_c, codes_c, INTERPRETED)
        logits = multiply(q_a, tl.trans(k_a), no_logits, INTERPRETED)
        logits = multiply(q_b, tl.trans(k_b), logits, INTERPRETED)
        logits = multiply(q_c, tl.trans(k_c), logits, INTERPRETED)
        logits = multiply(q_rope, tl.trans(v_rope), logits, INTERPRETED)

        # What comes after the part's last block is not used.
        is_main = block + 1 < num_main
        rows = load_rows(slot, is_main, caches, PAGE_SIZE, EXTRA_PAGE_SIZE)
        slot = block_slots(block + 2, candidates, BLOCK_N)

        logits = tl.where(
            counted[None, :], logits * (softmax_scale * LOG2_E), float("-inf")
        )
        new_max = tl.maximum(row_max, tl.max(logits, 1))
        # -inf - (-inf) would be NaN: a row without candidates so far subtracts 0.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        rescale = tl.exp2(row_max - shift)
        weights = tl.exp2(logits - shift[:, None])
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        row_max = new_max
        weights = weights.to(tl.bfloat16)
        rescale = rescale[:, None]
        out_a = multiply(weights, k_a, out_a * rescale, INTERPRETED)
        out_b = multiply(weights, k_b, out_b * rescale, INTERPRETED)
        out_c = multiply(weights, k_c, out_c * rescale, INTERPRETED)
        out_rope = multiply(weights, v_rope, out_rope * rescale, INTERPRETED)

    sink = row_max
    if HAS_SINK:
        sink = tl.load(sink_ptr + heads, mask=heads < num_heads, other=0.0)
    weight, lse = finish_softmax(row_max, row_sum, sink, HAS_SINK)
    first_row = (split * num_tokens + token).to(tl.int64) * num_heads
    tl.store(lse_ptr + first_row + heads, lse, mask=heads < num_heads)
    out_rows = output_ptr + (first_row + heads)[:, None] * LATENT_DIM
    weight = weight[:, None]
    store_output(out_rows, head_mask, from_pair_order(out_a * (weight * NOPE_UNIT)), 0)
    store_output(
        out_rows, head_mask, from_pair_order(out_b * (weight * NOPE_UNIT)), FIRST_B * 16
    )
    store_output(
        out_rows, head_mask, from_pair_order(out_c * (weight * NOPE_UNIT)), FIRST_C * 16
    )
    store_output(out_rows, head_mask, out_rope * weight, NOPE_DIM)


@triton.jit(do_not_specialize=("num_heads", "num_rows", "num_splits"))
def merge_kernel(
    partial_ptr,
    partial_lse_ptr,
    sink_ptr,
    output_ptr,
    lse_ptr,
    num_heads,
    num_rows,
    num_splits,
    HAS_SINK: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """Weigh the partial results of a row by their LSEs. Grid ``(tokens * heads,)``.

    ``num_rows`` is tokens * heads; MAX_SPLITS a power of two.
    """
    row = tl.program_id(0)
    part = tl.arange(0, MAX_SPLITS)
    logs = (
        tl.load(
            partial_lse_ptr + part * num_rows + row,
            mask=part < num_splits,
            other=float("-inf"),
        )
        * LOG2_E
    )
    largest = tl.max(logs, 0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(tl.exp2(logs - shift), 0)
    sink = largest
    if HAS_SINK:
        sink = tl.load(sink_ptr + row % num_heads)
    weight, lse = finish_softmax(largest, total, sink, HAS_SINK)
    column = tl.arange(0, LATENT_DIM)
    output = tl.zeros((LATENT_DIM,), tl.float32)
    for index in range(num_splits):
        log = tl.load(partial_lse_ptr + index * num_rows + row) * LOG2_E
        values = tl.load(
            partial_ptr + (index * num_rows + row).to(tl.int64) * LATENT_DIM + column
        )
        output += values.to(tl.float32) * (tl.exp2(log - shift) * weight)
    tl.store(
        output_ptr + row.to(tl.int64) * LATENT_DIM + column, output.to(tl.bfloat16)
    )
    tl.store(lse_ptr + row, lse)
