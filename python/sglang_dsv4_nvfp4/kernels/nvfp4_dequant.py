"""Dequantizing for tensor cores: groups of 16 E2M1 codes to BF16, in few instructions.

The three magnitude bits of an E2M1 code, put where BF16 has its lowest exponent bits and
its highest mantissa bit, are already the value times 2 ** -126, subnormals included; the
sign goes to the top. Two codes at a time, four apart in their 32-bit word, so that one
shift serves both halves of a register. One packed multiplication with the group's scale
finishes the pair; every product of a code and an E4M3 scale has six significant bits at
most, so BF16 holds it exactly.

Two things follow, and every kernel that reads these tiles allows for them:

- The scale cannot carry the whole factor 2 ** 126 (448 would overflow). It carries
  2 ** 110, and tiles hold NoPE values divided by ``NOPE_UNIT`` = 2 ** 16. Queries are
  multiplied with it beforehand and outputs afterwards, which is exact too.
- A word's columns come in pair order, ``PAIR_ORDER``: 0 4 1 5 2 6 3 7. A product over
  the columns does not care, if queries come in the same order; outputs are put back.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/nvfp4_dequant.py``.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Column of each value of a 32-bit word, in the order in which tiles hold them.
PAIR_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
_CODES_PER_WORD = len(PAIR_ORDER)
# 16 codes make two words, which the kernels load as one 64-bit integer.
_PAIRS_PER_GROUP = 8

_SCALE_EXPONENT = 110
_CODE_EXPONENT = 126
NOPE_UNIT = tl.constexpr(2.0 ** (_CODE_EXPONENT - _SCALE_EXPONENT))
SCALE_FACTOR = tl.constexpr(2.0**_SCALE_EXPONENT)

# Where a code's sign and magnitude belong, in both halves of a register.
_SIGNS = "0x80008000"
_MAGNITUDES = "0x01C001C0"
# What moves the sign and the magnitude of code i (and of i + 4) there.
_SHIFTS = (
    ("shl.b32 sign, {word}, 12;", "shl.b32 magnitude, {word}, 6;"),
    ("shl.b32 sign, {word}, 8;", "shl.b32 magnitude, {word}, 2;"),
    ("shl.b32 sign, {word}, 4;", "shr.u32 magnitude, {word}, 2;"),
    ("mov.b32 sign, {word};", "shr.u32 magnitude, {word}, 6;"),
)


def _decode_asm(words: int, scale: int, emit) -> str:
    """PTX for one group: operand ``words`` is 64 bits, ``scale`` its scale twice.

    emit: the lines that give out pair number i, which is in register ``pair``.
    """
    lines = [
        ".reg .b32 low, high, sign, magnitude, pair, zero;",
        # -0: the product keeps its sign when this is added.
        f"mov.b32 zero, {_SIGNS};",
        f"mov.b64 {{low, high}}, ${words};",
    ]
    for index in range(_PAIRS_PER_GROUP):
        word = ("low", "high")[index // len(_SHIFTS)]
        lines += [line.format(word=word) for line in _SHIFTS[index % len(_SHIFTS)]]
        lines += [
            f"and.b32 sign, sign, {_SIGNS};",
            # (magnitude & mask) | sign
            f"lop3.b32 pair, magnitude, {_MAGNITUDES}, sign, 0xEA;",
            f"fma.rn.bf16x2 pair, pair, ${scale}, zero;",
            emit(index),
        ]
    return "{\n" + "\n".join(lines) + "\n}"


# 16 outputs of 16 bits, for kernels whose tiles are BF16 in registers.
DECODE_VALUES = tl.constexpr(
    _decode_asm(16, 17, lambda i: f"mov.b32 {{${2 * i}, ${2 * i + 1}}}, pair;")
)
DECODE_VALUES_CONSTRAINTS = tl.constexpr(",".join(["=&h"] * 16 + ["l", "r"]))
# 8 outputs of 32 bits, two values each, for kernels that see shared memory as both.
DECODE_PAIRS = tl.constexpr(_decode_asm(8, 9, lambda i: f"mov.b32 ${i}, pair;"))
DECODE_PAIRS_CONSTRAINTS = tl.constexpr(",".join(["=&r"] * 8 + ["l", "r"]))


@triton.jit
def _twice(scales):
    """FP32 scales as BF16 bits in both halves of an int32; they are exact in BF16."""
    bits = (scales * SCALE_FACTOR).to(tl.int32, bitcast=True)
    return (bits & -65536) | ((bits >> 16) & 0xFFFF)


@triton.jit
def _decode_plainly(words, scales):
    """What the PTX computes, by operations that the interpreter knows."""
    value = tl.arange(0, 16)
    # Column of each value by PAIR_ORDER, in bits of the 64-bit word.
    shift = 32 * (value // 8) + 4 * ((value % 8) // 2 + 4 * (value % 2))
    codes = ((words[:, :, None] >> shift[None, None, :].to(tl.int64)) & 0xF).to(
        tl.int32
    )
    steps = codes & 0x7
    # Up to 1 the values are half the code; above, two a power of two.
    power = ((tl.maximum(steps >> 1, 1) + 126) << 23).to(tl.float32, bitcast=True)
    magnitude = tl.where(
        steps < 2, steps.to(tl.float32) * 0.5, power * (1.0 + 0.5 * (steps & 1))
    )
    signed = tl.where(codes >= 8, -magnitude, magnitude)
    return signed * (scales[:, :, None] / NOPE_UNIT)


@triton.jit
def decode_groups(words, scales, INTERPRETED: tl.constexpr):
    """``[n, g]`` groups to a ``[n, 16 * g]`` BF16 tile, in pair order, / NOPE_UNIT.

    words: int64, 16 codes each. scales: FP32.
    """
    rows: tl.constexpr = words.shape[0]
    columns: tl.constexpr = 16 * words.shape[1]
    if INTERPRETED:
        tile = _decode_plainly(words, scales)
        return tl.reshape(tile, (rows, columns)).to(tl.bfloat16)
    v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, va, vb, vc, vd, ve, vf = (
        tl.inline_asm_elementwise(
            DECODE_VALUES,
            DECODE_VALUES_CONSTRAINTS,
            [words, _twice(scales)],
            dtype=(tl.int16,) * 16,
            is_pure=True,
            pack=1,
        )
    )
    # Each join adds the index's next lower bit as a dimension: no value moves.
    low = tl.join(
        tl.join(tl.join(v0, v8), tl.join(v4, vc)),
        tl.join(tl.join(v2, va), tl.join(v6, ve)),
    )
    high = tl.join(
        tl.join(tl.join(v1, v9), tl.join(v5, vd)),
        tl.join(tl.join(v3, vb), tl.join(v7, vf)),
    )
    tile = tl.reshape(tl.join(low, high), (rows, columns))
    return tile.to(tl.bfloat16, bitcast=True)


@triton.jit
def to_pair_order(tile):
    """``[m, d]`` columns in natural order to PAIR_ORDER, within each eight."""
    return _transposed_eights(tile, 2, 4)


@triton.jit
def from_pair_order(tile):
    """The inverse of :func:`to_pair_order`."""
    return _transposed_eights(tile, 4, 2)


@triton.jit
def _transposed_eights(tile, FROM: tl.constexpr, TO: tl.constexpr):
    rows: tl.constexpr = tile.shape[0]
    columns: tl.constexpr = tile.shape[1]
    bits = tl.reshape(tile, (rows, columns // 8, FROM, TO))
    return tl.reshape(tl.permute(bits, (0, 1, 3, 2)), (rows, columns))
