"""The compiled Triton kernels at a server's sizes, against the PyTorch backend."""

import pytest
import torch
from support.mla import kernels, random_cache

from sglang_dsv4_nvfp4.attention import torch_backend, triton_backend
from sglang_dsv4_nvfp4.attention.inputs import CandidateSet, SparseMLAInputs

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)

POOL_PAGES = 1024
# BF16 weights and rows, one rounding of the output, and one of partial results.
RELATIVE_ERROR = 2.0**-8


KERNELS = kernels("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def caches():
    generator = torch.Generator().manual_seed(5)
    return {
        page_size: random_cache(
            generator, POOL_PAGES * 64 // page_size, page_size, "cuda"
        )
        for page_size in (64, 2)
    }


def make_inputs(caches, tokens, heads, extra_topk, extra_page_size, magnitude=1.0):
    generator = torch.Generator("cuda").manual_seed(tokens * heads)

    def draw(*shape, low, high):
        return torch.randint(
            low, high, shape, dtype=torch.int32, device="cuda", generator=generator
        )

    def candidates(width, page_size):
        indices = draw(tokens, width, low=-64, high=POOL_PAGES * 64)
        return CandidateSet(
            caches[page_size],
            indices.clamp(min=-1),
            draw(tokens, low=0, high=width + 1),
        )

    q = torch.randn(tokens, heads, 512, device="cuda", generator=generator) * magnitude
    return SparseMLAInputs(
        q=q.bfloat16(),
        main=candidates(128, 64),
        extra=candidates(extra_topk, extra_page_size) if extra_topk else None,
        attn_sink=torch.randn(heads, device="cuda", generator=generator),
        softmax_scale=512**-0.5,
    )


def check(inputs, use_hopper, num_splits):
    output, lse = triton_backend.run(inputs, num_splits, use_hopper=use_hopper)
    expected, expected_lse = torch_backend.torch_mla(inputs)
    assert not output.isnan().any()
    error = (output.float() - expected.float()).norm() / expected.float().norm()
    assert error <= RELATIVE_ERROR
    empty = torch.isneginf(expected_lse)
    assert torch.equal(torch.isneginf(lse), empty)
    assert (output[empty] == 0).all()
    torch.testing.assert_close(lse, expected_lse, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("use_hopper", KERNELS)
@pytest.mark.parametrize("extra", [(0, 0), (512, 64), (64, 2), (1024, 64)], ids=str)
@pytest.mark.parametrize("heads", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("tokens", [1, 7, 64, 257, 1024])
def test_servers_sizes(caches, tokens, heads, extra, use_hopper):
    inputs = make_inputs(caches, tokens, heads, *extra)
    splits = triton_backend.num_splits(
        inputs.shape, inputs.q.device, use_hopper=use_hopper
    )
    check(inputs, use_hopper, splits)


@pytest.mark.parametrize("use_hopper", KERNELS)
def test_a_large_prefill(caches, use_hopper):
    check(make_inputs(caches, 32768, 16, 512, 64), use_hopper, 1)


@pytest.mark.parametrize("use_hopper", KERNELS)
def test_large_logits(caches, use_hopper):
    check(make_inputs(caches, 64, 64, 512, 64, magnitude=300.0), use_hopper, 2)


@pytest.mark.parametrize("use_hopper", KERNELS)
@pytest.mark.parametrize("num_splits", [1, 3, 32])
def test_runs_agree_to_the_bit(caches, use_hopper, num_splits):
    """A race between producer and consumers would show as a difference."""
    inputs = make_inputs(caches, 300, 64, 512, 64)
    first, _ = triton_backend.run(inputs, num_splits, use_hopper=use_hopper)
    for _ in range(10):
        again, _ = triton_backend.run(inputs, num_splits, use_hopper=use_hopper)
        assert torch.equal(first, again)
