"""The stores, one launch each: append, window rows, compressed rows.

A program takes one row: 512 values in, BF16 or (the compressor's) FP32, and 384 bytes
out. See ``nvfp4_rows.py`` for how a row is spread over the lanes of a warp.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/nvfp4_store.py``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sglang_dsv4_nvfp4.kernels.nvfp4_rows import (
    NOPE_DIM,
    ROPE_PAIRS,
    load_rotations,
    norm_rope_row,
    rope_offsets,
    row_offsets,
    store_row,
)

_SEQ_LEN_INVALID = tl.constexpr(-1)
_PLAN_WORDS = tl.constexpr(4)
_DUPLICATE_BLOCK = tl.constexpr(1024)


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Programmatic dependent launch: started early, wait for the kernel before.

    Only then may the kernel after start: what SGLang's kernels read before they wait
    must be at least two kernels old. And every program waits, also one that has
    nothing to store: what comes after relies on this kernel's end for the end of all
    before it.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def load_row(rows_ptr, row, row_stride, mask):
    """``[32, 16]`` FP32: row ``row`` of rows that lie ``row_stride`` values apart."""
    row_ptr = rows_ptr + row.to(tl.int64) * row_stride
    return tl.load(row_ptr + row_offsets(), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_rope(rows_ptr, row, row_stride, mask):
    """``[32, 2]`` FP32: the RoPE values of such a row, pair by pair."""
    row_ptr = rows_ptr + row.to(tl.int64) * row_stride
    return tl.load(row_ptr + rope_offsets(), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def norm_rope_store(
    values,
    rope,
    weight_ptr,
    cosine,
    sine,
    eps,
    slot,
    valid,
    cache_ptr,
    page_stride,
    PAGE_SIZE: tl.constexpr,
    FOUR_OVER_SIX: tl.constexpr,
    NATIVE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Finish an un-normed row and write it to its slot."""
    values, rope_words = norm_rope_row(
        values, rope, weight_ptr, cosine, sine, eps, INTERPRETED
    )
    store_row(
        values,
        rope_words,
        slot,
        valid,
        cache_ptr,
        page_stride,
        PAGE_SIZE,
        FOUR_OVER_SIX,
        NATIVE,
        INTERPRETED,
    )


@triton.jit
def append_kernel(
    rows_ptr,
    slots_ptr,
    cache_ptr,
    num_slots,
    row_stride,
    page_stride,
    PAGE_SIZE: tl.constexpr,
    UNIQUE_SLOTS: tl.constexpr,
    FOUR_OVER_SIX: tl.constexpr,
    NATIVE: tl.constexpr,
    PDL: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A finished BF16 row to its slot; of equal slots the lowest row wins."""
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    valid = (slot >= 0) & (slot < num_slots)
    if not UNIQUE_SLOTS:
        # Look at every earlier row's slot: quadratic, and read from the L2.
        for start in range(0, row, _DUPLICATE_BLOCK):
            earlier = start + tl.arange(0, _DUPLICATE_BLOCK)
            earlier_slots = tl.load(slots_ptr + earlier, mask=earlier < row, other=-1)
            taken = earlier_slots.to(tl.int64) == slot
            valid = valid & (tl.max(taken.to(tl.int32), axis=0) == 0)
    values = load_row(rows_ptr, row, row_stride, valid)
    # The RoPE values' bits pass through, a pair a word.
    pair = tl.arange(0, ROPE_PAIRS)
    word_ptr = rows_ptr.to(tl.pointer_type(tl.int32))
    rope_word = (row.to(tl.int64) * row_stride + NOPE_DIM) // 2
    rope_words = tl.load(word_ptr + rope_word + pair, mask=valid, other=0)
    store_row(
        values,
        rope_words,
        slot,
        valid,
        cache_ptr,
        page_stride,
        PAGE_SIZE,
        FOUR_OVER_SIX,
        NATIVE,
        INTERPRETED,
    )


@triton.jit
def window_store_kernel(
    kv_ptr,
    weight_ptr,
    freqs_ptr,
    positions_ptr,
    slots_ptr,
    cache_ptr,
    num_slots,
    eps,
    kv_stride,
    page_stride,
    PAGE_SIZE: tl.constexpr,
    FOUR_OVER_SIX: tl.constexpr,
    NATIVE: tl.constexpr,
    PDL: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """An un-normed row of the window: norm, RoPE, round, quantize, scatter."""
    row = tl.program_id(0)
    # Positions are a forward's inputs, and long there: read them, like SGLang's FP8
    # store, while the projection before this may still run. The table is constant.
    position = tl.load(positions_ptr + row).to(tl.int64)
    cosine, sine = load_rotations(freqs_ptr, position)
    wait_for_inputs(PDL)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    valid = (slot >= 0) & (slot < num_slots)
    norm_rope_store(
        load_row(kv_ptr, row, kv_stride, True),
        load_rope(kv_ptr, row, kv_stride, True),
        weight_ptr,
        cosine,
        sine,
        eps,
        slot,
        valid,
        cache_ptr,
        page_stride,
        PAGE_SIZE,
        FOUR_OVER_SIX,
        NATIVE,
        INTERPRETED,
    )


@triton.jit
def compressed_store_kernel(
    kv_ptr,
    plan_ptr,
    weight_ptr,
    freqs_ptr,
    out_loc_ptr,
    cache_ptr,
    num_slots,
    eps,
    kv_stride,
    page_stride,
    COMPRESS_RATIO: tl.constexpr,
    IS_DECODE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    FOUR_OVER_SIX: tl.constexpr,
    NATIVE: tl.constexpr,
    PDL: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A row of the compressor, where its plan counts it; else nothing is written.

    plan_ptr: four int32 words a row; see ``compress_plan.py``.
    """
    row = tl.program_id(0)
    # The plan was made when the forward began, and the compressor has read it too.
    seq_len = tl.load(plan_ptr + row * _PLAN_WORDS)
    if IS_DECODE:
        counts = (seq_len > 0) & (seq_len % COMPRESS_RATIO == 0)
        source = row
    else:
        counts = seq_len != _SEQ_LEN_INVALID
        source = tl.load(plan_ptr + row * _PLAN_WORDS + 1) & 0xFFFF
    slot = tl.load(out_loc_ptr + source, mask=counts, other=-1).to(tl.int64)
    valid = counts & (slot >= 0) & (slot < num_slots)
    position = tl.where(valid, seq_len - COMPRESS_RATIO, 0).to(tl.int64)
    cosine, sine = load_rotations(freqs_ptr, position)
    wait_for_inputs(PDL)
    norm_rope_store(
        load_row(kv_ptr, row, kv_stride, valid),
        load_rope(kv_ptr, row, kv_stride, valid),
        weight_ptr,
        cosine,
        sine,
        eps,
        slot,
        valid,
        cache_ptr,
        page_stride,
        PAGE_SIZE,
        FOUR_OVER_SIX,
        NATIVE,
        INTERPRETED,
    )
