"""The format's reference quantizer and dequantizer, in PyTorch on any device.

This is the specification that every store and every kernel is held to, byte for
byte. One group of 16 NoPE values is quantized in FP32 from the BF16 row::

    amax  = largest magnitude; NaN does not count
    scale = E4M3(amax / 6), to nearest even, saturating at 448
    inv   = 1 / scale, or 0 where the stored scale is 0
    code  = E2M1(value * inv), to nearest even, saturating at 6; signs of zeros are
            kept and NaN becomes the largest positive code

With the scale rule ``4over6`` a group may take E4M3(amax / 4) instead, where that has
the smaller squared error ("four over six": the codes 4 and 6 lie far apart, so a
group whose largest values fill the gap is better off with 4 as its top).

FlashInfer's ``nvfp4_quantize_append_sparse_mla_cache`` (0.7.2,
``sparse_mla_sm120/compute/nvfp4_quantization.cuh``) has the same rule. It is compiled
with fast math, which changes no byte: the scales come out alike, and the approximate
reciprocal is exact for all 126 of them.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/quantize.py``.
"""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.config import ScaleRule
from sglang_dsv4_nvfp4.layout import (
    BYTES_PER_TOKEN,
    DATA_BYTES,
    GROUP_SIZE,
    LATENT_DIM,
    NOPE_BYTES,
    NOPE_DIM,
    NUM_GROUPS,
    SCALE_BYTES,
    check_pages,
    page_bytes_view,
    slot_offsets,
)

E2M1_MAX = 6.0
E4M3_MAX = torch.finfo(torch.float8_e4m3fn).max
_E2M1_SIGN = 0x8
_E2M1_NAN = 0x7


def quantize_append(
    latent_kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
    scale_rule: ScaleRule = ScaleRule.AMAX6,
) -> None:
    """Quantize rows and write each to its slot.

    Safe in CUDA graphs: it neither synchronizes nor branches on data.

    Args:
        latent_kv: ``[n, 512]`` BF16, rows after norm and RoPE.
        slot_mapping: ``[n]`` int32 or int64, ``page * page_size + entry``. Negative
            and out-of-range slots are skipped; of equal slots the lowest row wins.
        cache: ``[pages, page_size, 384]`` uint8, written in place; pages may be
            apart.
        scale_rule: how a group's scale is chosen.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    check_latent(latent_kv)
    check_pages(cache)
    check_slots(slot_mapping)
    check_slot_per_row(latent_kv, slot_mapping)
    num_pages, page_size, _ = cache.shape
    if latent_kv.shape[0] == 0:
        return
    if num_pages * page_size == 0:
        raise ValueError("cannot append to an empty cache")

    slots, rows = _settle_slots(slot_mapping, num_pages * page_size)
    data, scales = quantize_rows(latent_kv, scale_rule)
    page, data_offset, scale_offset = slot_offsets(slots, page_size)
    flat = page_bytes_view(cache)
    for values, offset in ((data, data_offset), (scales, scale_offset)):
        columns = offset[:, None] + torch.arange(values.shape[1], device=cache.device)
        # Row -1 stands for "nothing to write": its slot keeps the bytes it has.
        kept = flat[page[:, None], columns]
        written = torch.where((rows >= 0)[:, None], values[rows.clamp(min=0)], kept)
        flat[page[:, None], columns] = written


def quantize_pack(
    latent_kv: torch.Tensor, scale_rule: ScaleRule = ScaleRule.AMAX6
) -> torch.Tensor:
    """Quantize whole pages.

    Args:
        latent_kv: ``[pages, page_size, 512]`` BF16.

    Returns:
        ``[pages, page_size, 384]`` uint8 pages.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    if latent_kv.ndim != 3:
        raise ValueError(
            f"latent_kv must be [pages, page_size, {LATENT_DIM}], got "
            f"{tuple(latent_kv.shape)}"
        )
    num_pages, page_size, _ = latent_kv.shape
    rows = latent_kv.reshape(-1, latent_kv.shape[-1])
    check_latent(rows)
    data, scales = quantize_rows(rows, scale_rule)
    pages = torch.cat(
        [
            data.view(num_pages, page_size * DATA_BYTES),
            scales.view(num_pages, page_size * SCALE_BYTES),
        ],
        dim=1,
    )
    return pages.view(num_pages, page_size, BYTES_PER_TOKEN)


def dequantize(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Read rows back. BF16 holds every code times its scale exactly.

    Args:
        cache: ``[pages, page_size, 384]`` uint8; pages may be apart.
        slots: int32 or int64 of any shape; negative and out-of-range slots read as
            zeros.

    Returns:
        ``[*slots.shape, 512]`` BF16.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    check_pages(cache)
    num_pages, page_size, _ = cache.shape
    flat_slots = slots.reshape(-1).long()
    valid = (flat_slots >= 0) & (flat_slots < num_pages * page_size)
    if num_pages * page_size == 0:
        return torch.zeros(
            (*slots.shape, LATENT_DIM), dtype=torch.bfloat16, device=cache.device
        )
    page, data_offset, scale_offset = slot_offsets(
        torch.where(valid, flat_slots, 0), page_size
    )
    flat = page_bytes_view(cache)

    def gather(offset: torch.Tensor, length: int) -> torch.Tensor:
        columns = offset[:, None] + torch.arange(length, device=cache.device)
        return flat[page[:, None], columns]

    data = gather(data_offset, DATA_BYTES)
    scales = gather(scale_offset, NUM_GROUPS)
    rows = dequantize_rows(data, scales)
    rows = torch.where(valid[:, None], rows, torch.zeros_like(rows))
    return rows.view(*slots.shape, LATENT_DIM)


def quantize_rows(
    latent_kv: torch.Tensor, scale_rule: ScaleRule = ScaleRule.AMAX6
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[n, 512]`` BF16 rows to ``[n, 352]`` data and ``[n, 32]`` scale bytes."""
    num_rows = latent_kv.shape[0]
    groups = latent_kv[:, :NOPE_DIM].float().reshape(num_rows, NUM_GROUPS, GROUP_SIZE)
    magnitude = groups.abs()
    amax = torch.where(magnitude.isnan(), 0.0, magnitude).amax(dim=-1)
    # Dividing by a tensor, since by a Python number PyTorch's CUDA kernel multiplies
    # with a rounded reciprocal.
    scale_codes = encode_e4m3(amax / torch.full_like(amax, E2M1_MAX))
    if scale_rule is ScaleRule.FOUR_OVER_SIX:
        narrow_codes = encode_e4m3(amax * 0.25)
        narrow_is_closer = _group_errors(groups, narrow_codes) < _group_errors(
            groups, scale_codes
        )
        scale_codes = torch.where(narrow_is_closer, narrow_codes, scale_codes)
    inverse = _inverse_scale(scale_codes)
    codes = encode_e2m1(groups * inverse[..., None]).view(num_rows, NOPE_DIM)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    rope = latent_kv[:, NOPE_DIM:].contiguous().view(torch.uint8)
    padding = scale_codes.new_zeros(num_rows, SCALE_BYTES - NUM_GROUPS)
    return torch.cat([packed, rope], dim=1), torch.cat([scale_codes, padding], dim=1)


def _inverse_scale(scale_codes: torch.Tensor) -> torch.Tensor:
    scale = decode_e4m3(scale_codes)
    return torch.where(scale == 0, 0.0, torch.ones_like(scale) / scale)


def _group_errors(groups: torch.Tensor, scale_codes: torch.Tensor) -> torch.Tensor:
    """``[n, 28]`` squared errors of ``[n, 28, 16]`` groups under their scales.

    Summed neighbour by neighbour, so that kernels can add in the same order: two
    errors may be one rounding apart.
    """
    codes = encode_e2m1(groups * _inverse_scale(scale_codes)[..., None])
    stored = decode_e2m1(codes) * decode_e4m3(scale_codes)[..., None]
    squares = (groups - stored).square()
    while squares.shape[-1] > 1:
        squares = squares[..., 0::2] + squares[..., 1::2]
    return squares[..., 0]


def dequantize_rows(data: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``[n, 352]`` data and ``[n, >= 28]`` scale bytes to ``[n, 512]`` BF16 rows."""
    num_rows = data.shape[0]
    packed = data[:, :NOPE_BYTES]
    codes = torch.stack([packed & 0xF, packed >> 4], dim=-1).view(num_rows, NOPE_DIM)
    scale = decode_e4m3(scales[:, :NUM_GROUPS])
    nope = decode_e2m1(codes) * scale.repeat_interleave(GROUP_SIZE, dim=1)
    rope = data[:, NOPE_BYTES:].contiguous().view(torch.bfloat16)
    return torch.cat([nope.bfloat16(), rope], dim=1)


def encode_e4m3(values: torch.Tensor) -> torch.Tensor:
    """FP32 to E4M3 bytes: nearest even, saturating (PyTorch's cast makes NaN there)."""
    saturated = values.clamp(-E4M3_MAX, E4M3_MAX)
    return saturated.to(torch.float8_e4m3fn).view(torch.uint8)


def decode_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """E4M3 bytes to FP32."""
    return codes.contiguous().view(torch.float8_e4m3fn).float()


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """FP32 to E2M1 codes, one a byte: nearest even, saturating, NaN to +6."""
    magnitude = values.abs()
    # Halfway cases go to the even code: up at 0.75, 1.75 and 3.5, down elsewhere.
    code = (magnitude > 0.25).to(torch.uint8)
    for above in (1.25, 2.5, 5.0):
        code += magnitude > above
    for at_least in (0.75, 1.75, 3.5):
        code += magnitude >= at_least
    code |= values.signbit().to(torch.uint8) * _E2M1_SIGN
    return torch.where(values.isnan(), _E2M1_NAN, code)


def decode_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """E2M1 codes, one a byte, to FP32."""
    exponent = (codes >> 1) & 0x3
    mantissa = codes & 0x1
    # Twice the value is an integer; exponent 0 is the subnormal pair 0 and 0.5.
    doubled = torch.where(
        exponent == 0, mantissa, (2 + mantissa) << (exponent.clamp(min=1) - 1)
    )
    magnitude = doubled.float() * 0.5
    return torch.where((codes & _E2M1_SIGN) != 0, -magnitude, magnitude)


def check_latent(
    rows: torch.Tensor,
    name: str = "latent_kv",
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,),
) -> None:
    """Refuse anything but ``[n, 512]`` rows of ``dtypes``, with a ValueError."""
    if rows.ndim != 2 or rows.shape[1] != LATENT_DIM or rows.dtype not in dtypes:
        expected = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(
            f"{name} must be {expected} [n, {LATENT_DIM}], got {rows.dtype} "
            f"{tuple(rows.shape)}"
        )


def check_slots(slots: torch.Tensor, name: str = "slot_mapping") -> None:
    """Refuse anything but ``[n]`` int32 or int64, with a ValueError."""
    if slots.ndim != 1 or slots.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{name} must be one-dimensional int32 or int64, got {slots.dtype} "
            f"{tuple(slots.shape)}"
        )


def check_slot_per_row(latent_kv: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Refuse an append that has not one slot for each row, with a ValueError."""
    if latent_kv.shape[0] != slot_mapping.shape[0]:
        raise ValueError(
            f"latent_kv has {latent_kv.shape[0]} rows for the "
            f"{slot_mapping.shape[0]} slots of slot_mapping"
        )


def _settle_slots(
    slot_mapping: torch.Tensor, num_slots: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each write: the slot it goes to, and the row whose bytes it carries.

    Equal slots all carry the lowest row, so it does not matter which write lands
    last. Skipped rows join the write of the first row that counts; where none
    does, row -1 at slot 0 says that its bytes stay.
    """
    num_rows = slot_mapping.shape[0]
    index = torch.arange(num_rows, device=slot_mapping.device)
    slots = slot_mapping.long()
    # Past every valid slot, so that one sort puts skipped rows last.
    slots = torch.where((slots >= 0) & (slots < num_slots), slots, num_slots)
    ordered, order = torch.sort(slots, stable=True)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    first_of_group = torch.where(starts, index, 0).cummax(dim=0).values
    rows = torch.empty_like(order)
    rows[order] = order[first_of_group]

    skipped = slots == num_slots
    any_valid = ordered[0] < num_slots
    stand_in_slot = torch.where(any_valid, ordered[0], 0)
    stand_in_row = torch.where(any_valid, order[0], -1)
    return (
        torch.where(skipped, stand_in_slot, slots),
        torch.where(skipped, stand_in_row, rows),
    )
