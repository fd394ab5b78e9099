"""The fused stores: one Triton kernel each, no BF16 rows in memory, nothing staged.

Arguments are those of ``dispatch``. The kernels neither synchronize nor allocate, so
they need no warm-up for CUDA graphs beyond their compilation.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
import triton

from sglang_dsv4_nvfp4.config import ScaleRule, scale_rule
from sglang_dsv4_nvfp4.kernels import nvfp4_store
from sglang_dsv4_nvfp4.layout import check_pages
from sglang_dsv4_nvfp4.quantize import check_latent, check_slots

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
    check_pages(cache)
    num_rows = latent_kv.shape[0]
    if num_rows != slot_mapping.shape[0]:
        raise ValueError(
            f"latent_kv has {num_rows} rows for the {slot_mapping.shape[0]} slots of "
            "slot_mapping"
        )
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
    check_latent(kv)
    check_slots(slots)
    check_pages(cache)
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
        kv_weight.contiguous(),
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
    check_latent(kv)
    check_slots(out_loc)
    check_pages(cache)
    num_rows = kv.shape[0]
    if num_rows == 0:
        return
    if plan[1].shape[0] != num_rows:
        raise ValueError(f"the plan has {plan[1].shape[0]} rows for {num_rows} of kv")
    kv = _dense_rows(kv)
    nvfp4_store.compressed_store_kernel[(num_rows,)](
        kv,
        plan[1].contiguous().view(torch.int32),
        norm_weight.contiguous(),
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
        # A fused multiply-add rounds once where the reference's errors round twice.
        enable_fp_fusion=not four_over_six,
    )


@functools.cache
def _capability_major(device: torch.device) -> int:
    """The device's compute capability; 0 where the kernels are interpreted."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_capability(device)[0]


def _dense_rows(rows: torch.Tensor) -> torch.Tensor:
    """Rows of neighbouring values that start at a word; the rows may be apart."""
    if rows.stride(1) == 1 and rows.stride(0) % 2 == 0 and rows.data_ptr() % 4 == 0:
        return rows
    return rows.contiguous()


def _rotations(freqs_cis: torch.Tensor) -> torch.Tensor:
    """``[max_position, 32, 2]`` FP32 view of complex64 rotations."""
    return torch.view_as_real(freqs_cis.contiguous())
