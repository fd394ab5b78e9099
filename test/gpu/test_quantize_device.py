"""The reference quantizer on a GPU, and what FlashInfer's writer relies on there."""

import pytest
import torch
import triton
import triton.language as tl
from support.groups import groups_of_every_kind

from sglang_dsv4_nvfp4.layout import NOPE_DIM, NUM_GROUPS
from sglang_dsv4_nvfp4.quantize import dequantize, quantize_pack

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)


def test_the_reference_gives_the_same_bytes_on_both_devices():
    """PyTorch's CUDA kernels divide by a Python number with a rounded reciprocal."""
    groups = groups_of_every_kind()
    rows = torch.zeros(len(groups) // NUM_GROUPS, 512).bfloat16()
    rows[:, :NOPE_DIM] = groups[: rows.shape[0] * NUM_GROUPS].view(-1, NOPE_DIM)
    expected = quantize_pack(rows[None])
    actual = quantize_pack(rows.cuda()[None])
    assert torch.equal(actual.cpu(), expected)
    slots = torch.arange(len(rows))
    read, expected = dequantize(actual, slots.cuda()), dequantize(expected, slots)
    assert torch.equal(read.cpu().view(torch.int16), expected.view(torch.int16))


@triton.jit
def _approximate_reciprocal(values_ptr, result_ptr, COUNT: tl.constexpr):
    offsets = tl.arange(0, COUNT)
    result = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;",
        "=f,f",
        [tl.load(values_ptr + offsets)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
    tl.store(result_ptr + offsets, result)


def test_fast_math_keeps_the_reciprocal_of_every_scale():
    """FlashInfer compiles its writer with fast math, where 1 / scale is approximate.

    A last bit off would flip codes at halfway cases. It is exact for all 126 scales.
    """
    scales = torch.ones(128, device="cuda")
    codes = torch.arange(1, 127, dtype=torch.uint8, device="cuda")
    scales[:126] = codes.view(torch.float8_e4m3fn).float()
    result = torch.empty_like(scales)
    _approximate_reciprocal[(1,)](scales, result, COUNT=128)
    assert torch.equal(
        result.double().cpu().float(), (1 / scales.double().cpu()).float()
    )
