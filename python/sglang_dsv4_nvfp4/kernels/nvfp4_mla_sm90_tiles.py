"""Tiles of the Hopper attention kernel: packed rows to BF16 in shared memory.

The producer's four warps take 32 rows a pass, four lanes a row. A tile's row is eight
blocks of 128 bytes, seven NoPE and one RoPE; of each block a lane owns 32 bytes, for NoPE
one group of 16. The eight lanes of a shared-memory phase then write to different banks.

Rows come to the producer by ``cp.async``, through a stage of shared memory that holds a
whole block's packed rows: they are under way while the block before is dequantized, and
take no registers.

Arguments that travel together are tuples::

    candidates  (blocks of the main cache, its indices, the extra cache's indices, how
                 many count of each)
    caches      (main cache, extra cache, and the bytes of a page of each)
    stage       (seven blocks of groups, RoPE values, scales; for both halves)

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/nvfp4_mla_sm90_tiles.py``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
)

from sglang_dsv4_nvfp4 import layout
from sglang_dsv4_nvfp4.kernels import nvfp4_dequant

BLOCK_N = gl.constexpr(64)
NUM_TILES = gl.constexpr(2)
PRODUCER_WARPS = gl.constexpr(4)
# Rows of a pass.
_HALF = gl.constexpr(BLOCK_N.value // 2)

LATENT_DIM = gl.constexpr(layout.LATENT_DIM)
DATA_BYTES = gl.constexpr(layout.DATA_BYTES)
SCALE_BYTES = gl.constexpr(layout.SCALE_BYTES)
NOPE_WORDS = gl.constexpr(layout.NOPE_BYTES // 4)
SCALE_FACTOR = gl.constexpr(nvfp4_dequant.SCALE_FACTOR.value)
DECODE = gl.constexpr(nvfp4_dequant.DECODE_PAIRS.value)
DECODE_CONSTRAINTS = gl.constexpr(nvfp4_dequant.DECODE_PAIRS_CONSTRAINTS.value)

# Three bits of a lane say which of a warp's rows, two which part of it.
_ROW_LANES = [[1, 0], [2, 0], [4, 0]]
_ROW_WARPS = [[8, 0], [16, 0]]


def _rows_layout(registers: list, parts: list, width: int) -> gl.constexpr:
    return gl.constexpr(
        gl.DistributedLinearLayout(
            registers, [*parts, *_ROW_LANES], _ROW_WARPS, [], [_HALF.value, width]
        )
    )


# A group a lane; its 32 bytes as int32; and a row's scales, in each of its lanes.
_GROUPS = _rows_layout([], [[0, 1], [0, 2]], 4)
_BLOCK = _rows_layout([[0, 1], [0, 2], [0, 4]], [[0, 8], [0, 16]], 32)
_SCALES = _rows_layout([[0, 1], [0, 2], [0, 4]], [[0, 0], [0, 0]], 8)
# Two of a row's lanes copy its scales, 16 bytes each; Triton leaves the other two out.
_SCALES_COPIED = _rows_layout([[0, 1], [0, 2]], [[0, 4], [0, 0]], 8)
_ROWS = gl.constexpr(gl.SliceLayout(1, _GROUPS.value))
_SHARED_STAGE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
# Rows of 128 bytes begin at the same bank: 16-byte pieces change places.
_SHARED_ROPE = gl.constexpr(gl.SwizzledSharedLayout(4, 1, 2, [1, 0]))
_SHARED_INT32 = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))


@gluon.jit
def half_slots(block, end_block, candidates, FIRST: gl.constexpr):
    """int32 slots of half a block's candidates, -1 where there is none.

    From ``end_block`` on there are none: those blocks are another part's.
    """
    num_main, main_ptr, extra_ptr, count, extra_count = candidates
    is_main = block < num_main
    first = gl.where(is_main, block, block - num_main) * BLOCK_N + FIRST
    position = first + gl.arange(0, _HALF, layout=_ROWS)
    limit = gl.where(is_main, count, extra_count)
    base = gl.where(is_main, main_ptr, extra_ptr)
    in_part = (position < limit) & (block < end_block)
    return gl.load(base + position, mask=in_part, other=-1)


@gluon.jit
def row_pointers(
    slot, is_main, caches, PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr
):
    """Data rows and scale rows of slots."""
    cache_ptr, extra_cache_ptr, page_stride, extra_page_stride = caches
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
def allocate_stage():
    """Shared memory for the packed rows of two halves, 24 KiB.

    One allocation for each copy: Triton puts a barrier between copies to the same one.
    """
    return (
        gl.allocate_shared_memory(gl.int64, [2, _HALF, 4], _SHARED_STAGE),
        gl.allocate_shared_memory(gl.int64, [2, _HALF, 4], _SHARED_STAGE),
        gl.allocate_shared_memory(gl.int64, [2, _HALF, 4], _SHARED_STAGE),
        gl.allocate_shared_memory(gl.int64, [2, _HALF, 4], _SHARED_STAGE),
        gl.allocate_shared_memory(gl.int64, [2, _HALF, 4], _SHARED_STAGE),
        gl.allocate_shared_memory(gl.int64, [2, _HALF, 4], _SHARED_STAGE),
        gl.allocate_shared_memory(gl.int64, [2, _HALF, 4], _SHARED_STAGE),
        gl.allocate_shared_memory(gl.int32, [2, _HALF, 32], _SHARED_ROPE),
        gl.allocate_shared_memory(gl.int32, [2, _HALF, 8], _SHARED_STAGE),
    )


@gluon.jit
def copy_columns(
    target,
    rows,
    valid,
    dtype: gl.constexpr,
    FIRST: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """Start copying each row's elements from ``FIRST`` on, zeros where not valid."""
    ROWS: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    width: gl.constexpr = LAYOUT.shape[1]
    column = FIRST + gl.arange(0, width, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    rows = gl.convert_layout(rows, ROWS, assert_trivial=True)
    mask = gl.convert_layout(valid, ROWS, assert_trivial=True)[:, None]
    pointers = gl.multiple_of(rows, 16)[:, None]
    pointers = pointers.to(gl.pointer_type(dtype), bitcast=True)
    async_copy.async_copy_global_to_shared(target, pointers + column, mask=mask)


@gluon.jit
def copy_rows(
    stage,
    HALF: gl.constexpr,
    slot,
    is_main,
    caches,
    PAGE_SIZE: gl.constexpr,
    EXTRA_PAGE_SIZE: gl.constexpr,
):
    """Start copying 32 rows to the stage, as one group. Returns their biases.

    The bias is what masks a candidate: added to its logits, 0 or -inf.
    """
    b0, b1, b2, b3, b4, b5, b6, rope, scales = stage
    valid = slot >= 0
    data, scale = row_pointers(slot, is_main, caches, PAGE_SIZE, EXTRA_PAGE_SIZE)
    copy_columns(b0.index(HALF), data, valid, gl.int64, 0, _GROUPS)
    copy_columns(b1.index(HALF), data, valid, gl.int64, 4, _GROUPS)
    copy_columns(b2.index(HALF), data, valid, gl.int64, 8, _GROUPS)
    copy_columns(b3.index(HALF), data, valid, gl.int64, 12, _GROUPS)
    copy_columns(b4.index(HALF), data, valid, gl.int64, 16, _GROUPS)
    copy_columns(b5.index(HALF), data, valid, gl.int64, 20, _GROUPS)
    copy_columns(b6.index(HALF), data, valid, gl.int64, 24, _GROUPS)
    copy_columns(rope.index(HALF), data, valid, gl.int32, NOPE_WORDS, _BLOCK)
    copy_columns(scales.index(HALF), scale, valid, gl.int32, 0, _SCALES_COPIED)
    async_copy.commit_group()
    return gl.where(valid, 0.0, float("-inf"))


@gluon.jit
def staged_rows(stage, HALF: gl.constexpr):
    """A half's rows out of the stage, when they are there."""
    b0, b1, b2, b3, b4, b5, b6, rope, scales = stage
    # The other half's copies stay under way.
    async_copy.wait_group(1)
    return (
        b0.index(HALF).load(_GROUPS),
        b1.index(HALF).load(_GROUPS),
        b2.index(HALF).load(_GROUPS),
        b3.index(HALF).load(_GROUPS),
        b4.index(HALF).load(_GROUPS),
        b5.index(HALF).load(_GROUPS),
        b6.index(HALF).load(_GROUPS),
        rope.index(HALF).load(_BLOCK),
        scales.index(HALF).load(_SCALES),
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
        dtype=(gl.int32,) * 8,
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
def write_half(tile, rows):
    """Dequantize 32 rows into ``tile``, ``[32, 256]`` int32 of shared memory."""
    b0, b1, b2, b3, b4, b5, b6, rope, scales = rows
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
    stage,
    full,
    empty,
    first_block,
    end_block,
    candidates,
    caches,
    PAGE_SIZE: gl.constexpr,
    EXTRA_PAGE_SIZE: gl.constexpr,
):
    """Fill the tiles of blocks ``first_block`` to ``end_block``, one after the other.

    While a half is dequantized, the rows of the next two halves travel, and the slots
    of the two after those.
    """
    num_main = candidates[0]
    is_main = first_block < num_main
    slot_a = half_slots(first_block, end_block, candidates, 0)
    slot_b = half_slots(first_block, end_block, candidates, _HALF)
    bias_a = copy_rows(stage, 0, slot_a, is_main, caches, PAGE_SIZE, EXTRA_PAGE_SIZE)
    bias_b = copy_rows(stage, 1, slot_b, is_main, caches, PAGE_SIZE, EXTRA_PAGE_SIZE)
    slot_a = half_slots(first_block + 1, end_block, candidates, 0)
    slot_b = half_slots(first_block + 1, end_block, candidates, _HALF)
    for block in range(first_block, end_block):
        turn = block - first_block
        index = turn % NUM_TILES
        phase = (turn // NUM_TILES) & 1
        tile = tiles.index(index)._reinterpret(
            gl.int32, [BLOCK_N, LATENT_DIM // 2], _SHARED_INT32
        )
        bias = biases.index(index)
        is_main = block + 1 < num_main
        rows, row_bias = staged_rows(stage, 0), bias_a
        bias_a = copy_rows(
            stage, 0, slot_a, is_main, caches, PAGE_SIZE, EXTRA_PAGE_SIZE
        )
        slot_a = half_slots(block + 2, end_block, candidates, 0)
        mbarrier.wait(empty.index(index), phase ^ 1)
        bias.slice(0, _HALF).store(row_bias)
        write_half(tile.slice(0, _HALF, dim=0), rows)
        rows, row_bias = staged_rows(stage, 1), bias_b
        bias_b = copy_rows(
            stage, 1, slot_b, is_main, caches, PAGE_SIZE, EXTRA_PAGE_SIZE
        )
        slot_b = half_slots(block + 2, end_block, candidates, _HALF)
        bias.slice(_HALF, _HALF).store(row_bias)
        write_half(tile.slice(_HALF, _HALF, dim=0), rows)
        fence_async_shared()
        mbarrier.arrive(full.index(index), count=1)
    # Copies still under way would land in what the stage's memory is used for next.
    async_copy.wait_group(0)
