"""From the compressor's input to attention, through SGLang's own kernels and plans.

600 tokens cross two pages, 150 groups of 4 and four groups of 128.
"""

import pytest
import torch
from support.attention_kit import KitPool, format_scope, rounded
from support.compressed_chain import EPS, Request, Server
from support.references import attention_reference, norm_rope_reference

from sglang_dsv4_nvfp4.cli import pools
from sglang_dsv4_nvfp4.config import KERNEL_ENV, Kernel, KVCacheFormat
from sglang_dsv4_nvfp4.layout import kernel_view
from sglang_dsv4_nvfp4.quantize import dequantize

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)

LENGTH = 600
RATIOS = (4, 128)
# Inside a group of 4 and of 128, at a page's edge, and one that ends no group.
CHUNKS = (0, 1, 130, 256, 258, 511, LENGTH)
DECODE_FROM = 500


@pytest.fixture(params=list(KVCacheFormat))
def pool_class(request, device, monkeypatch):
    """FP8's pool is there to tell what SGLang's own kernels keep from what ours do."""
    monkeypatch.setenv(KERNEL_ENV, Kernel.TRITON)
    is_nvfp4 = request.param is KVCacheFormat.NVFP4
    with format_scope(monkeypatch, request.param):
        yield KitPool if is_nvfp4 else pools.pool_class(request.param)


@pytest.fixture
def serve(pool_class, device, monkeypatch):
    return lambda ratio: Server(pool_class, ratio, device, monkeypatch)


def draw(ratio, device):
    return Request(ratio, LENGTH, torch.Generator().manual_seed(ratio), device)


@pytest.mark.parametrize("ratio", RATIOS)
def test_chunked_prefill_writes_what_one_shot_does(ratio, serve, device):
    request, whole, chunked = draw(ratio, device), serve(ratio), serve(ratio)
    expected = whole.prefill(request, 0, LENGTH)
    parts = [
        chunked.prefill(request, start, stop)
        for start, stop in zip(CHUNKS, CHUNKS[1:], strict=False)
    ]
    check_same(whole, chunked)
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("ratio", RATIOS)
def test_decode_writes_what_prefill_does(ratio, serve, device):
    request, whole, stepped = draw(ratio, device), serve(ratio), serve(ratio)
    expected = whole.prefill(request, 0, LENGTH)
    stepped.prefill(request, 0, DECODE_FROM)
    steps = [stepped.decode(request, at) for at in range(DECODE_FROM, LENGTH)]
    check_same(whole, stepped)
    torch.testing.assert_close(
        torch.cat(steps), expected[DECODE_FROM:], atol=1e-2, rtol=1e-2
    )


def check_same(one, other):
    for expected, actual in zip(one.pages(), other.pages(), strict=True):
        # The first page is the dummy that padding writes to.
        assert torch.equal(actual[1:], expected[1:])


@pytest.mark.parametrize("pool_class", [KVCacheFormat.NVFP4], indirect=True)
@pytest.mark.parametrize("ratio", RATIOS)
def test_rows_and_outputs_are_what_the_inputs_say(ratio, serve, device):
    request, server = draw(ratio, device), serve(ratio)
    output = server.prefill(request, 0, LENGTH)
    positions = torch.arange(LENGTH)
    window_pages, compressed_pages = server.pages()
    window = check_stored(
        window_pages,
        256,
        request.latents,
        request.norm_weight.bfloat16(),
        request.freqs_cis,
        positions,
    )
    compressed = check_stored(
        compressed_pages,
        256 // ratio,
        request.compressed_rows(),
        request.norm_weight,
        request.freqs_cis,
        positions[::ratio][: LENGTH // ratio],
    )
    tokens = [0, 3, 127, 128, 300, LENGTH - 1]
    candidates = [
        torch.cat([window[max(0, at - 127) : at + 1], compressed[: (at + 1) // ratio]])
        for at in tokens
    ]
    sink = server.fixture.actual_module.attn_sink.cpu()
    queries = request.queries.cpu()[tokens]
    expected, _ = attention_reference(queries, candidates, sink, 512**-0.5)
    torch.testing.assert_close(
        output.cpu()[tokens].double(), expected, atol=2e-2, rtol=2e-2
    )


def check_stored(pages, page_size, rows, weight, freqs_cis, positions):
    """``[n, 512]`` rows as stored from the second page on: the finished rows, rounded.

    The FP32 kernels may round a value to the neighbour of what FP64 rounds to, and a
    group's scale with it: that changes the error by little.
    """
    finished = norm_rope_reference(
        rows.cpu(), weight.cpu(), EPS, freqs_cis.cpu(), positions
    )
    pages = kernel_view(pages.cpu(), page_size)
    slots = torch.arange(page_size, page_size + len(finished))
    stored = dequantize(pages, slots).double()
    expected = rounded(finished).double()
    torch.testing.assert_close(
        stored[:, 448:], expected[:, 448:], atol=1e-2, rtol=2**-7
    )
    error, least = (stored - finished).norm(), (expected - finished).norm()
    assert least / finished.norm() < 0.11 and error < 1.01 * least
    return stored
