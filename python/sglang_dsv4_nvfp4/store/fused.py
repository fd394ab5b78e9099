"""The fused stores: one Triton kernel each, no BF16 rows in memory, nothing staged.

Arguments are those of ``dispatch``. The kernels neither synchronize nor need scratch, so
CUDA graphs ask for no warm-up beyond their compilation.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/fused.py``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
import triton

from sglang_dsv4_nvfp4.config import ScaleRule, scale_rule
from sglang_dsv4_nvfp4.kernels import nvfp4_store
from sglang_dsv4_nvfp4.layout import (
    LATENT_DIM,
    PAGE_ALIGNMENT,
    ROPE_DIM,
    check_pages,
    pages_are_aligned,
)
from sglang_dsv4_nvfp4.quantize import check_latent, check_slot_per_row, check_slots
from sglang_dsv4_nvfp4.store.compress_plan import plan_words

if TYPE_CHECKING:
    from sglang.kernels.ops.attention.dsv4 import (
        CompressorDecodePlan,
        CompressorPrefillPlan,
    )

# Programmatic dependent launch: Hopper and later. It hides a launch, which is most of a
# small store's time, and costs more than that where programs come in many waves.
_PDL_MAJOR = 9
_PDL_MAX_ROWS = 2048
# `cvt.rn.satfinite.e2m1x2.f32` exists from this compute capability on.
_NATIVE_E2M1_MAJOR = 10


def append(
    latent_kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
    *,
    unique_slots: bool = False,
) -> None:
    check_latent(latent_kv)
    check_slots(slot_mapping)
    _check_cache(cache)
    check_slot_per_row(latent_kv, slot_mapping)
    num_rows = latent_kv.shape[0]
    if num_rows == 0:
        return
    latent_kv = _dense_rows(latent_kv)
    nvfp4_store.append_kernel[(num_rows,)](
        latent_kv,
        slot_mapping.contiguous(),
        cache,
        cache.shape[0] * cache.shape[1],
        latent_kv.stride(0),
        cache.stride(0),
        UNIQUE_SLOTS=unique_slots,
        **_launch_options(cache, num_rows),
    )


def store_window_rows(
    *,
    kv: torch.Tensor,
    kv_weight: torch.Tensor,
    eps: float,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
) -> None:
    check_latent(kv, "kv")
    check_slots(slots)
    check_slots(positions, "positions")
    _check_cache(cache)
    num_rows = kv.shape[0]
    if not num_rows == slots.shape[0] == positions.shape[0]:
        raise ValueError(
            f"kv has {num_rows} rows for {slots.shape[0]} slots and "
            f"{positions.shape[0]} positions"
        )
    if num_rows == 0:
        return
    kv = _dense_rows(kv)
    nvfp4_store.window_store_kernel[(num_rows,)](
        kv,
        _weight(kv_weight, kv.dtype),
        _rotations(freqs_cis),
        positions.contiguous(),
        slots.contiguous(),
        cache,
        cache.shape[0] * cache.shape[1],
        eps,
        kv.stride(0),
        cache.stride(0),
        **_launch_options(cache, num_rows),
    )


def store_compressed_rows(
    kv: torch.Tensor,
    plan: CompressorDecodePlan | CompressorPrefillPlan,
    *,
    norm_weight: torch.Tensor,
    norm_eps: float,
    freq_cis: torch.Tensor,
    out_loc: torch.Tensor,
    cache: torch.Tensor,
) -> None:
    # The compressor computes in FP32, weights and rows alike.
    check_latent(kv, "kv", (torch.float32, torch.bfloat16))
    check_slots(out_loc, "out_loc")
    _check_cache(cache)
    num_rows = kv.shape[0]
    if num_rows == 0:
        return
    if plan[1].shape[0] != num_rows:
        raise ValueError(f"the plan has {plan[1].shape[0]} rows for {num_rows} of kv")
    if plan.is_decode and out_loc.shape[0] < num_rows:
        raise ValueError(f"out_loc has {out_loc.shape[0]} slots for {num_rows} rows")
    kv = _dense_rows(kv)
    nvfp4_store.compressed_store_kernel[(num_rows,)](
        kv,
        plan_words(plan[1]),
        _weight(norm_weight, kv.dtype),
        _rotations(freq_cis),
        out_loc.contiguous(),
        cache,
        cache.shape[0] * cache.shape[1],
        norm_eps,
        kv.stride(0),
        cache.stride(0),
        COMPRESS_RATIO=plan.compress_ratio,
        IS_DECODE=plan.is_decode,
        **_launch_options(cache, num_rows),
    )


def _launch_options(cache: torch.Tensor, num_rows: int) -> dict:
    pdl = num_rows <= _PDL_MAX_ROWS and _capability_major(cache.device) >= _PDL_MAJOR
    four_over_six = scale_rule() is ScaleRule.FOUR_OVER_SIX
    return dict(
        PAGE_SIZE=cache.shape[1],
        FOUR_OVER_SIX=four_over_six,
        NATIVE=_capability_major(cache.device) >= _NATIVE_E2M1_MAJOR,
        PDL=pdl,
        launch_pdl=pdl,
        # A warp a row: no barrier, and no shared memory.
        num_warps=1,
        INTERPRETED=bool(triton.knobs.runtime.interpret),
        # A fused multiply-add rounds once where the reference rounds twice.
        enable_fp_fusion=False,
    )


@functools.cache
def _capability_major(device: torch.device) -> int:
    """The device's compute capability; 0 where the kernels are interpreted."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_capability(device)[0]


def _check_cache(cache: torch.Tensor) -> None:
    """Refuse what the kernels cannot address, with a ValueError."""
    check_pages(cache)
    if cache.numel() == 0:
        raise ValueError("cannot store into an empty cache")
    if not pages_are_aligned(cache):
        raise ValueError(
            f"cache pages must start at multiples of {PAGE_ALIGNMENT} bytes, got "
            f"address {cache.data_ptr():#x} and page stride {cache.stride(0)}"
        )


def _weight(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The norm's weight in the rows' dtype, as SGLang's stores take it."""
    if weight.shape != (LATENT_DIM,):
        raise ValueError(
            f"the norm's weight must be [{LATENT_DIM}], got {tuple(weight.shape)}"
        )
    return weight.to(dtype).contiguous()


def _dense_rows(rows: torch.Tensor) -> torch.Tensor:
    """Rows of neighbouring values that start at a word; the rows may be apart."""
    row_bytes = rows.stride(0) * rows.element_size()
    if rows.stride(1) == 1 and row_bytes % 4 == 0 and rows.data_ptr() % 4 == 0:
        return rows
    return rows.contiguous()


def _rotations(freqs_cis: torch.Tensor) -> torch.Tensor:
    """``[max_position, 32, 2]`` FP32 view of complex64 rotations."""
    if (
        freqs_cis.dtype != torch.complex64
        or freqs_cis.shape[1:] != (ROPE_DIM // 2,)
        or not freqs_cis.is_contiguous()
    ):
        raise ValueError(
            f"freqs_cis must be contiguous complex64 [max_position, {ROPE_DIM // 2}], "
            f"got {freqs_cis.dtype} {tuple(freqs_cis.shape)} with strides "
            f"{tuple(freqs_cis.stride())}"
        )
    return torch.view_as_real(freqs_cis)
