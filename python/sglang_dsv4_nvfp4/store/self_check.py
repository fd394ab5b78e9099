"""One comparison at startup: do the fused kernels write the reference's bytes here?

The kernels convert by an instruction that only some GPUs have, among them those that they
were not tested on. A server that would store wrong bytes must not come up.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/self_check.py``.
"""

from __future__ import annotations

import functools

import torch

from sglang_dsv4_nvfp4.config import STORE_MODE_ENV, StoreMode, scale_rule
from sglang_dsv4_nvfp4.layout import BYTES_PER_TOKEN, LATENT_DIM
from sglang_dsv4_nvfp4.quantize import quantize_append

_NUM_ROWS = 256
_PAGE_SIZE = 64


@functools.cache
def check_fused_append(device: torch.device) -> None:
    """Append rows of every magnitude with both writers, once a process and device.

    Raises:
        RuntimeError: the bytes differ.
    """
    from sglang_dsv4_nvfp4.store import fused

    rows = check_rows().to(device)
    slots = torch.arange(_NUM_ROWS, device=device)
    pages = (_NUM_ROWS // _PAGE_SIZE, _PAGE_SIZE, BYTES_PER_TOKEN)
    expected, actual = (
        torch.zeros(pages, dtype=torch.uint8, device=device) for _ in range(2)
    )
    quantize_append(rows, slots, expected, scale_rule())
    fused.append(rows, slots, actual, unique_slots=True)
    different = int((actual != expected).sum())
    if different:
        raise RuntimeError(
            f"the fused NVFP4 store writes {different} of {expected.numel()} bytes "
            f"unlike the reference on {device}. Set {STORE_MODE_ENV}="
            f"{StoreMode.STAGED.value} and report this"
        )


def check_rows() -> torch.Tensor:
    """``[256, 512]`` finite BF16 rows: scales from 0 to saturation, and exact ties."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_NUM_ROWS, LATENT_DIM, generator=generator)
    exponents = torch.randint(
        -14, 14, (_NUM_ROWS, LATENT_DIM // 16), generator=generator
    )
    rows *= (2.0**exponents).repeat_interleave(16, dim=1)
    # Quarters of a largest value of 6 reach every halfway case of the codes.
    quarters = torch.randint(-24, 25, (_NUM_ROWS // 2, LATENT_DIM), generator=generator)
    rows[::2] = quarters / 4
    rows[::2, ::16] = 6.0
    return rows.bfloat16()
