"""Device functions shared by the stores: a latent row from values to bytes.

A row of 512 values, a program each, is a tile of ``[32, 16]``: 28 NoPE groups of 16 values that share a
scale, and 4 groups of RoPE values, which count for the norm and are not quantized. With
one warp a row, half a group lies in a lane: one shuffle finds its largest value, and
eight values make one 32-bit word of codes without leaving the lane. The RoPE values are
read once more as ``[32, 2]``, a pair a lane: rotating them in the tile would cost every
lane what four lanes need.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/nvfp4_rows.py``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sglang_dsv4_nvfp4 import layout

# Triton functions see globals that are constexprs; the numbers are the layout's.
LATENT_DIM = tl.constexpr(layout.LATENT_DIM)
NOPE_DIM = tl.constexpr(layout.NOPE_DIM)
GROUP_SIZE = tl.constexpr(layout.GROUP_SIZE)
# Groups of a row, of which the first are NoPE; also the bytes of a scale row.
NUM_GROUPS = tl.constexpr(layout.LATENT_DIM // layout.GROUP_SIZE)
NUM_NOPE_GROUPS = tl.constexpr(layout.NUM_GROUPS)
ROPE_PAIRS = tl.constexpr(layout.ROPE_DIM // 2)
DATA_BYTES = tl.constexpr(layout.DATA_BYTES)
NOPE_BYTES = tl.constexpr(layout.NOPE_BYTES)
SCALE_BYTES = tl.constexpr(layout.SCALE_BYTES)

_E2M1_MAX = tl.constexpr(6.0)
# Multiplying with this in FP32 gives the E4M3 scale of dividing by 6, for every BF16
# magnitude (test_scale_of_every_magnitude), but only if the product is rounded: a fused
# multiply-add would round four ties the other way, so kernels are launched without.
_SIXTH = tl.constexpr(1.0 / 6.0)
_E4M3_MAX_CODE = tl.constexpr(0x7E)
# Rebiasing between FP32's exponent (127) and E4M3's (7).
_E4M3_BIAS = tl.constexpr(120)
_E4M3_MIN_NORMAL = tl.constexpr(2.0**-6)
_E4M3_STEP = tl.constexpr(2.0**-9)
# Adding 2 ** (23 + k) rounds a smaller FP32 number to a multiple of 2 ** k, to
# nearest even, and leaves the multiple in the low mantissa bits.
_ROUND_TO_E4M3_STEP = tl.constexpr(2.0**14)
_ROUND_TO_E4M3_STEP_BITS = tl.constexpr(0x46800000)
_EXPONENT_MASK = tl.constexpr(0x7F800000)
_EXPONENT_OF_ONE = tl.constexpr(0x3F800000)
# E2M1 has one mantissa bit: the step of a value is half of its power of two, and
# the power of two that rounds to that step is 2 ** 22 times the value's.
_TO_ROUNDER = tl.constexpr(22 << 23)


@triton.jit
def encode_e4m3(values):
    """Non-negative FP32 to E4M3 codes (int32): nearest even, saturating."""
    bits = values.to(tl.int32, bitcast=True)
    # Round the 23-bit mantissa to 3 bits; a carry moves on into the exponent.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (_E4M3_BIAS << 3)
    shifted = (values + _ROUND_TO_E4M3_STEP).to(tl.int32, bitcast=True)
    subnormal = shifted - _ROUND_TO_E4M3_STEP_BITS
    return tl.minimum(
        tl.where(values < _E4M3_MIN_NORMAL, subnormal, normal), _E4M3_MAX_CODE
    )


@triton.jit
def decode_e4m3(codes):
    """Non-negative E4M3 codes (int32) to FP32."""
    normal = ((codes << 20) + (_E4M3_BIAS << 23)).to(tl.float32, bitcast=True)
    return tl.where(codes < 8, codes.to(tl.float32) * _E4M3_STEP, normal)


@triton.jit
def inverse_scale(scale_codes, INTERPRETED: tl.constexpr):
    """``1 / scale`` of E4M3 codes, correctly rounded, and 0 for a scale of 0."""
    scale = tl.where(scale_codes == 0, 1.0, decode_e4m3(scale_codes))
    inverse = 1.0 / scale
    if not INTERPRETED:
        # A GPU's reciprocal may be a last bit off; one step with the exact remainder
        # mends that, where NumPy's would have a remainder of its own rounding.
        inverse = tl.fma(inverse, tl.fma(-scale, inverse, 1.0), inverse)
    return tl.where(scale_codes == 0, 0.0, inverse)


@triton.jit
def _power_of_two_bits(magnitude):
    """FP32 bits of the power of two at or below, and of 1 for what is smaller."""
    bits = magnitude.to(tl.int32, bitcast=True)
    return tl.maximum(bits & _EXPONENT_MASK, _EXPONENT_OF_ONE)


@triton.jit
def encode_e2m1(values, INTERPRETED: tl.constexpr):
    """FP32 to E2M1 codes (int32): nearest even, saturating, NaN to +6.

    A GPU's arithmetic makes NaNs without a sign, which saturate to +6 like any other
    large value; NumPy's keep the sign of their operand.
    """
    if INTERPRETED:
        values = tl.where(values == values, values, _E2M1_MAX)
    magnitude = tl.minimum(tl.abs(values), _E2M1_MAX)
    power = _power_of_two_bits(magnitude)
    rounder = power + _TO_ROUNDER
    rounded = magnitude + rounder.to(tl.float32, bitcast=True)
    # The count of steps, plus two codes for each power of two above one.
    steps = rounded.to(tl.int32, bitcast=True) - rounder
    code = steps + ((power - _EXPONENT_OF_ONE) >> 22)
    return code | ((values.to(tl.int32, bitcast=True) >> 28) & 0x8)


@triton.jit
def round_e2m1(values):
    """FP32 to the nearest E2M1 value, in FP32: what :func:`encode_e2m1` stands for."""
    magnitude = tl.minimum(tl.abs(values), _E2M1_MAX)
    rounder = _power_of_two_bits(magnitude) + _TO_ROUNDER
    rounder = rounder.to(tl.float32, bitcast=True)
    rounded = (magnitude + rounder) - rounder
    return tl.where(values < 0, -rounded, rounded)


@triton.jit
def pack_e2m1(scaled, NATIVE: tl.constexpr, INTERPRETED: tl.constexpr):
    """``[32, 16]`` FP32 to ``[32, 2]`` int32 words of eight codes.

    NATIVE: by Blackwell's conversion instruction (sm_100 and later), which rounds
    two values into a byte; else by exact arithmetic. Both give the same words.
    """
    # The bits of an index inside a word become dimensions, and each split takes
    # one off: eight tensors, one per nibble, all in the lane that holds the group.
    bits = tl.reshape(scaled, (NUM_GROUPS, 2, 2, 2, 2))
    even, odd = tl.split(bits)
    v04, v26 = tl.split(even)
    v15, v37 = tl.split(odd)
    v0, v4 = tl.split(v04)
    v2, v6 = tl.split(v26)
    v1, v5 = tl.split(v15)
    v3, v7 = tl.split(v37)
    if NATIVE:
        return tl.inline_asm_elementwise(
            """{
            .reg .b8 b<4>;
            cvt.rn.satfinite.e2m1x2.f32 b0, $2, $1;
            cvt.rn.satfinite.e2m1x2.f32 b1, $4, $3;
            cvt.rn.satfinite.e2m1x2.f32 b2, $6, $5;
            cvt.rn.satfinite.e2m1x2.f32 b3, $8, $7;
            mov.b32 $0, {b0, b1, b2, b3};
            }""",
            constraints="=r,f,f,f,f,f,f,f,f",
            args=[v0, v1, v2, v3, v4, v5, v6, v7],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    words = encode_e2m1(v0, INTERPRETED)
    words |= encode_e2m1(v1, INTERPRETED) << 4
    words |= encode_e2m1(v2, INTERPRETED) << 8
    words |= encode_e2m1(v3, INTERPRETED) << 12
    words |= encode_e2m1(v4, INTERPRETED) << 16
    words |= encode_e2m1(v5, INTERPRETED) << 20
    words |= encode_e2m1(v6, INTERPRETED) << 24
    words |= encode_e2m1(v7, INTERPRETED) << 28
    return words


@triton.jit
def _sum_neighbours(values, WIDTH: tl.constexpr):
    """``[32, WIDTH]`` to half the width, each value plus its neighbour."""
    left, right = tl.split(tl.reshape(values, (NUM_GROUPS, WIDTH // 2, 2)))
    return left + right


@triton.jit
def group_errors(values, scale_codes, INTERPRETED: tl.constexpr):
    """``[32]``: squared error of each group under its scale, FP32.

    Summed neighbour by neighbour, as ``quantize.py`` does it: the choice between two
    scales must not depend on the order of a sum.
    """
    scaled = values * inverse_scale(scale_codes, INTERPRETED)[:, None]
    difference = values - round_e2m1(scaled) * decode_e4m3(scale_codes)[:, None]
    squares = difference * difference
    squares = _sum_neighbours(squares, 16)
    squares = _sum_neighbours(squares, 8)
    squares = _sum_neighbours(squares, 4)
    left, right = tl.split(squares)
    return left + right


@triton.jit
def choose_scales(
    values,
    FOUR_OVER_SIX: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """``[32, 16]`` FP32 of BF16 values to ``[32]`` E4M3 codes (int32)."""
    magnitude = tl.abs(values)
    if INTERPRETED:
        # A GPU's maximum drops NaNs by itself; NumPy's does not.
        magnitude = tl.where(values == values, magnitude, 0.0)
    amax = tl.max(magnitude, axis=1)
    scale_codes = encode_e4m3(amax * _SIXTH)
    if FOUR_OVER_SIX:
        narrow_codes = encode_e4m3(amax * 0.25)
        narrow_error = group_errors(values, narrow_codes, INTERPRETED)
        error = group_errors(values, scale_codes, INTERPRETED)
        narrow_is_closer = narrow_error < error
        scale_codes = tl.where(narrow_is_closer, narrow_codes, scale_codes)
    return scale_codes


@triton.jit
def row_offsets():
    """``[32, 16]``: where a row's values lie."""
    group = tl.arange(0, NUM_GROUPS)
    lane = tl.arange(0, GROUP_SIZE)
    return group[:, None] * GROUP_SIZE + lane[None, :]


@triton.jit
def rope_offsets():
    """``[32, 2]``: where a row's RoPE values lie, pair by pair."""
    pair = tl.arange(0, ROPE_PAIRS)
    part = tl.arange(0, 2)
    return pair[:, None] * 2 + part[None, :] + NOPE_DIM


@triton.jit
def store_row(
    values,
    rope_words,
    slot,
    valid,
    cache_ptr,
    page_stride,
    PAGE_SIZE: tl.constexpr,
    FOUR_OVER_SIX: tl.constexpr,
    NATIVE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Quantize a finished row and write it to its slot.

    values: ``[32, 16]`` FP32 of BF16 values, of which the NoPE groups count.
    rope_words: ``[32]`` int32, a BF16 pair each. slot: int64, in range where valid.
    cache_ptr: uint8 pages, ``page_stride`` bytes apart, 16-byte aligned.
    Bytes out: 352 of data and 32 of scales.
    """
    scale_codes = choose_scales(values, FOUR_OVER_SIX, INTERPRETED)
    scaled = values * inverse_scale(scale_codes, INTERPRETED)[:, None]
    words = pack_e2m1(scaled, NATIVE, INTERPRETED)

    page = cache_ptr + (slot // PAGE_SIZE) * page_stride
    entry = slot % PAGE_SIZE
    data = page + entry * DATA_BYTES
    scales = page + PAGE_SIZE * DATA_BYTES + entry * SCALE_BYTES
    group = tl.arange(0, NUM_GROUPS)
    is_nope = group < NUM_NOPE_GROUPS
    word = tl.arange(0, 2)
    tl.store(
        data.to(tl.pointer_type(tl.int32)) + group[:, None] * 2 + word[None, :],
        words,
        mask=is_nope[:, None] & valid,
    )
    # The RoPE values' bits, untouched.
    pair = tl.arange(0, ROPE_PAIRS)
    tl.store(
        (data + NOPE_BYTES).to(tl.pointer_type(tl.int32)) + pair,
        rope_words,
        mask=valid,
    )
    # 28 scales and the 4 zero bytes after them.
    tl.store(scales + group, tl.where(is_nope, scale_codes, 0).to(tl.uint8), mask=valid)


@triton.jit
def round_pairs_to_bf16(even, odd, INTERPRETED: tl.constexpr):
    """Two FP32 tensors to BF16, to nearest even, as the halves of int32 words.

    By the instruction that rounds two at once: the one that rounds a single value is
    an eighth as fast. Triton's interpreter has neither, and truncates on a cast.
    """
    if INTERPRETED:
        low, high = _bf16_bits(even), _bf16_bits(odd)
        return low | (high << 16)
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;",
        constraints="=r,f,f",
        args=[even, odd],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _bf16_bits(values):
    bits = values.to(tl.int32, bitcast=True)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (tl.where(values == values, rounded, bits) >> 16) & 0xFFFF


@triton.jit
def load_rotations(freqs_ptr, position):
    """``[32]`` cosines and sines of FP32 ``[max_position, 64]`` rotations."""
    pair = tl.arange(0, ROPE_PAIRS)
    part = tl.arange(0, 2)
    offsets = pair[:, None] * 2 + part[None, :]
    return tl.split(tl.load(freqs_ptr + position * (2 * ROPE_PAIRS) + offsets))


@triton.jit
def norm_rope_row(
    values,
    rope,
    weight_ptr,
    cosine,
    sine,
    eps,
    INTERPRETED: tl.constexpr,
):
    """RMS norm and GPT-J RoPE in FP32, then one rounding to BF16.

    values: ``[32, 16]`` FP32, the whole row. rope: ``[32, 2]`` FP32, its
    RoPE values again. weight_ptr: 512 values of any float dtype. cosine, sine: ``[32]``.
    Returns the tile, finished where it is NoPE, as FP32 that BF16 holds exactly; and
    the finished RoPE part as ``[32]`` int32 words of BF16 pairs.
    """
    squares = tl.sum(tl.sum(values * values, axis=1), axis=0)
    factor = tl.rsqrt(squares * (1.0 / LATENT_DIM) + eps)
    weight = tl.load(weight_ptr + row_offsets()).to(tl.float32)
    pairs = tl.reshape(values * factor * weight, (NUM_GROUPS, GROUP_SIZE // 2, 2))
    even, odd = tl.split(pairs)
    words = round_pairs_to_bf16(even, odd, INTERPRETED)
    even = (words << 16).to(tl.float32, bitcast=True)
    odd = (words & -0x10000).to(tl.float32, bitcast=True)
    values = tl.reshape(tl.join(even, odd), (NUM_GROUPS, GROUP_SIZE))

    rope_weight = tl.load(weight_ptr + rope_offsets())
    real, imaginary = tl.split(rope * factor * rope_weight.to(tl.float32))
    rope_words = round_pairs_to_bf16(
        real * cosine - imaginary * sine, real * sine + imaginary * cosine, INTERPRETED
    )
    return values, rope_words
