"""The Triton attention kernel at small sizes, against arithmetic in FP64.

On a machine without a GPU the interpreter runs it; on one with a GPU the compiled kernel
does, and the Hopper kernel beside it (``test/gpu`` has the sizes of a server).
"""

import math

import pytest
import torch
from support.mla import Case, random_cache

from sglang_dsv4_nvfp4.layout import DATA_BYTES, NOPE_BYTES, SCALE_BYTES
from sglang_dsv4_nvfp4.quantize import quantize_pack

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def case(generator):
    return Case(generator, DEVICE)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("extra_page_size", [None, 64, 2])
def test_random_candidates(case, extra_page_size, num_splits):
    inputs = case.inputs(tokens=4, heads=8, extra_page_size=extra_page_size)
    case.check(inputs, num_splits)


@pytest.mark.parametrize("heads", [8, 16, 24, 32, 40, 64, 128])
def test_head_counts_are_padded_inside(case, heads):
    case.check(case.inputs(tokens=2, heads=heads, width=40), 1)


@pytest.mark.parametrize("page_size", [1, 2, 3, 16, 64, 100])
def test_any_page_size(case, page_size):
    case.check(case.inputs(tokens=2, page_size=page_size), 2)


@pytest.mark.parametrize("width", [1, 31, 32, 33, 70])
def test_widths_that_fill_no_block(case, width):
    case.check(case.inputs(tokens=2, width=width, extra_width=width), 1)


def test_more_splits_than_blocks(case):
    inputs = case.inputs(tokens=3, width=40, extra_width=10)
    inputs.main.lengths.copy_(torch.tensor([0, 1, 40]))
    case.check(inputs, 7)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_nothing_valid_gives_zeros_and_minus_infinity(case, num_splits):
    inputs = case.inputs(tokens=3)
    inputs.main.indices[0] = -1
    inputs.extra.indices[0] = -1
    for part in (inputs.main, inputs.extra):
        part.lengths[1] = 0
        part.lengths[2] = 1
    for use_hopper in case.kernels:
        output, lse = case.run(inputs, num_splits, use_hopper)
        assert (output[:2] == 0).all() and torch.isneginf(lse[:2]).all()
        assert (output[2] != 0).any() and torch.isfinite(lse[2]).all()
    case.check(inputs, num_splits)


def test_lengths_past_the_width_count_as_the_width(case):
    inputs = case.inputs(tokens=2)
    inputs.main.lengths.copy_(torch.tensor([1000, -3]))
    case.check(inputs, 1)


def test_without_lengths_and_sink(case):
    inputs = case.inputs(tokens=2, with_lengths=False, with_sink=False)
    case.check(inputs, 1)
    case.check(inputs, 2)


def test_one_candidate_repeated_counts_as_often(case):
    inputs = case.inputs(tokens=1, extra_page_size=None)
    inputs.main.indices.fill_(-1)
    inputs.main.indices[0, 5] = 7
    for use_hopper in case.kernels:
        _, once = case.run(inputs, 1, use_hopper)
        once = once.clone()
        inputs.main.indices[0, :20] = 7
        inputs.main.lengths.fill_(20)
        _, often = case.run(inputs, 1, use_hopper)
        torch.testing.assert_close(often, once + math.log(20), atol=1e-4, rtol=1e-5)
        inputs.main.indices.fill_(-1)
        inputs.main.indices[0, 5] = 7
        inputs.main.lengths.fill_(inputs.main.indices.shape[1])


def test_slots_at_page_edges(case):
    inputs = case.inputs(tokens=2)
    last = inputs.main.cache.shape[0] * 64 - 1
    edges = torch.tensor([0, 63, 64, 127, 128, last - 1, last])
    inputs.main.indices[:, : len(edges)] = edges
    inputs.main.lengths.fill_(len(edges))
    case.check(inputs, 1)


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("value", [0.0, math.inf, -math.inf, 80.0])
def test_sinks_at_their_extremes(case, value, num_splits):
    inputs = case.inputs(tokens=2)
    inputs.attn_sink.fill_(value)
    case.check(inputs, num_splits)
    if value == math.inf:
        for use_hopper in case.kernels:
            assert (case.run(inputs, num_splits, use_hopper)[0] == 0).all()


def test_large_logits_do_not_overflow(case):
    inputs = case.inputs(tokens=2)
    inputs.q.mul_(300)
    case.check(inputs, 1)


@pytest.mark.parametrize("code", [0x00, 0x01, 0x07, 0x08, 0x7E])
def test_scales_at_their_extremes(case, generator, code):
    """Zero, the smallest and largest subnormal, the smallest normal, and 448."""
    inputs = case.inputs(tokens=2)
    for part in (inputs.main, inputs.extra):
        pages, page_size, _ = part.cache.shape
        scales = part.cache.view(pages, -1)[:, page_size * DATA_BYTES :]
        scales.view(pages, page_size, SCALE_BYTES)[:, ::2, :28] = code
    case.check(inputs, 1)


def test_every_code_is_decoded(case):
    """One candidate has all the weight, so the output is its row; 16 codes a group."""
    cache = random_cache(torch.Generator().manual_seed(3), 1, 64, DEVICE)
    data = cache.view(1, -1)[:, : 64 * DATA_BYTES].view(64, DATA_BYTES)
    codes = torch.arange(16, dtype=torch.uint8, device=DEVICE)
    packed = (codes[0::2] | (codes[1::2] << 4)).repeat(NOPE_BYTES // 8)
    data[:, :NOPE_BYTES] = packed
    inputs = case.inputs(tokens=1, extra_page_size=None, with_sink=False, width=64)
    inputs.main.cache.view(-1)[: cache.numel()] = cache.view(-1)
    inputs.main.indices.fill_(-1)
    inputs.main.indices[0, 0] = 9
    case.check(inputs, 1, exact=True)


def test_masked_rows_may_hold_nan(case):
    """Pages that were never written may hold anything."""
    inputs = case.inputs(tokens=2)
    for part in (inputs.main, inputs.extra):
        part.cache[-1] = 0xFF
        limit = (part.cache.shape[0] - 1) * part.cache.shape[1]
        part.indices.clamp_(max=limit - 1)
        part.indices[:, 3] = -1
    for use_hopper in case.kernels:
        assert not case.run(inputs, 1, use_hopper)[0].isnan().any()
    case.check(inputs, 1)


def test_queries_between_other_heads(case):
    """SGLang may hand out a slice of a wider tensor."""
    inputs = case.inputs(tokens=3, heads=16)
    wide = torch.zeros(3, 32, 512, dtype=torch.bfloat16, device=DEVICE)
    wide[:, :16] = inputs.q
    sliced = inputs.__class__(**{**vars(inputs), "q": wide[:, :16]})
    case.check(sliced, 1)


def test_pages_that_are_apart(case, generator):
    inputs = case.inputs(tokens=2, extra_page_size=None)
    dense = inputs.main.cache
    apart = torch.zeros(2 * len(dense), *dense.shape[1:], dtype=torch.uint8)
    apart = apart.to(DEVICE)[::2]
    apart.copy_(dense)
    main = inputs.main.__class__(**{**vars(inputs.main), "cache": apart})
    case.check(inputs.__class__(**{**vars(inputs), "main": main}), 1)


def test_rows_come_from_the_quantizer(case, generator):
    """The format as the stores write it, not as the tests fill it."""
    inputs = case.inputs(tokens=2, extra_page_size=None)
    rows = torch.randn(inputs.main.cache.shape[0], 64, 512, generator=generator)
    packed = quantize_pack(rows.bfloat16().to(DEVICE))
    inputs.main.cache.copy_(packed.view(inputs.main.cache.shape))
    case.check(inputs, 1)
