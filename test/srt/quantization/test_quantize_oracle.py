"""The reference quantizer against NVIDIA's own conversions, byte for byte.

The oracle is a host program over ``cuda_fp4.h`` and ``cuda_fp8.h``, which come with
SGLang's CUDA packages: it shares no code with the quantizer, and nobody here wrote
its rounding.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cuda_toolkit import cuda_include_dir
from support.groups import groups_of_every_kind

from sglang_dsv4_nvfp4 import quantize
from sglang_dsv4_nvfp4.layout import (
    GROUP_SIZE,
    NOPE_BYTES,
    NOPE_DIM,
    NUM_GROUPS,
    ROPE_DIM,
)

_SOURCE = Path(__file__).with_name("nvfp4_oracle.cpp")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """``oracle(mode, values)``: run the host program over FP32 values."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler (g++ or c++)")
    folder = tmp_path_factory.mktemp("oracle")
    binary = folder / "oracle"
    subprocess.run(
        [compiler, "-std=c++17", "-O2", "-ffp-contract=off", f"-I{cuda_include_dir()}"]
        + [str(_SOURCE), "-o", str(binary)],
        check=True,
    )

    def run(mode: str, values: torch.Tensor) -> np.ndarray:
        source, target = folder / "in.bin", folder / "out.bin"
        values.float().numpy().tofile(source)
        subprocess.run([str(binary), mode, str(source), str(target)], check=True)
        return np.fromfile(target, dtype=np.uint8)

    return run


def every_bf16() -> torch.Tensor:
    """All 65536 BF16 bit patterns: NaNs, infinities, zeros and subnormals too."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    return bits.view(torch.bfloat16)


def halfway_cases() -> torch.Tensor:
    """Around each E2M1 rounding boundary, one FP32 step to both sides."""
    edges = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0])
    infinity = torch.tensor(float("inf"))
    around = [
        edges,
        torch.nextafter(edges, infinity),
        torch.nextafter(edges, -infinity),
    ]
    values = torch.cat(around)
    return torch.cat([values, -values])


def test_e2m1_of_every_bf16_value(oracle):
    values = torch.cat([every_bf16().float(), halfway_cases()])
    expected = oracle("e2m1", values)
    np.testing.assert_array_equal(quantize.encode_e2m1(values).numpy(), expected)


def test_e4m3_of_every_bf16_value(oracle):
    values = every_bf16().float()
    # A scale comes from a magnitude without NaN, and that is all it must encode.
    values = values[(values >= 0) & ~values.isnan()]
    expected = oracle("e4m3", values)
    np.testing.assert_array_equal(quantize.encode_e4m3(values).numpy(), expected)


def test_every_byte_of_every_group(oracle):
    groups = groups_of_every_kind()
    expected = oracle("group", groups.flatten()).reshape(-1, GROUP_SIZE // 2 + 1)
    rows = torch.zeros(len(groups) // NUM_GROUPS, NOPE_DIM + ROPE_DIM).bfloat16()
    used = rows.shape[0] * NUM_GROUPS
    rows[:, :NOPE_DIM] = groups[:used].view(-1, NOPE_DIM)
    data, scales = quantize.quantize_rows(rows)
    codes = data[:, :NOPE_BYTES].reshape(used, GROUP_SIZE // 2)
    np.testing.assert_array_equal(codes.numpy(), expected[:used, :-1])
    np.testing.assert_array_equal(
        scales[:, :NUM_GROUPS].reshape(used).numpy(), expected[:used, -1]
    )
    assert used > 25000


def test_decoding_is_nvidias(oracle):
    codes = torch.arange(16, dtype=torch.uint8)
    values = quantize.decode_e2m1(codes)
    np.testing.assert_array_equal(oracle("e2m1", values), codes.numpy())
    codes = torch.arange(127, dtype=torch.uint8)
    values = quantize.decode_e4m3(codes)
    np.testing.assert_array_equal(oracle("e4m3", values), codes.numpy())
