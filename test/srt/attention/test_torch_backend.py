"""The PyTorch backend, the reference of all others, against FP64 arithmetic."""

import math

import pytest
import torch
from support.pools import random_rows
from support.references import attention_reference

from sglang_dsv4_nvfp4.attention import torch_backend
from sglang_dsv4_nvfp4.quantize import dequantize, quantize_pack

HEADS = 8
SCALE = 512**-0.5


@pytest.fixture(autouse=True)
def torch_is_asked_for(device, monkeypatch):
    monkeypatch.setenv("SGLANG_SM120_FLASHMLA_BACKEND", "torch")


@pytest.fixture
def caches(device, generator):
    """A main cache of 256-token rows and an extra cache of 2-token rows."""
    main = quantize_pack(random_rows(generator, 512, device).view(8, 64, 512))
    extra = quantize_pack(random_rows(generator, 64, device).view(32, 2, 512))
    return main.view(2, 256, 1, 384), extra.view(32, 2, 1, 384)


def attend(q, k_cache, indices, **kwargs):
    from sglang.kernels.ops.attention.flash_mla_sm120 import (
        flash_mla_with_kvcache_sm120,
    )

    output, lse = flash_mla_with_kvcache_sm120(
        q=q.unsqueeze(1), k_cache=k_cache, indices=indices, head_dim_v=512, **kwargs
    )
    return output.squeeze(1), lse.squeeze(-1)


def candidate_rows(k_cache, indices, lengths):
    """What each token may attend to, by a loop."""
    view = k_cache.view(torch.uint8).view(-1, min(64, k_cache.shape[1]), 384)
    rows = []
    for token, row in enumerate(indices.reshape(indices.shape[0], -1).tolist()):
        length = len(row) if lengths is None else int(lengths[token])
        slots = [slot for slot in row[:length] if slot >= 0]
        slots = torch.tensor(slots, dtype=torch.int64, device=view.device)
        rows.append(dequantize(view, slots).cpu())
    return rows


def check(q, caches, indices, lengths=None, extra=None, extra_lengths=None, sink=None):
    kwargs = {}
    rows = candidate_rows(caches[0], indices, lengths)
    if extra is not None:
        kwargs = {
            "extra_k_cache": caches[1],
            "extra_indices_in_kvcache": extra.unsqueeze(1),
            "extra_topk_length": extra_lengths,
        }
        more = candidate_rows(caches[1], extra, extra_lengths)
        rows = [torch.cat(pair) for pair in zip(rows, more, strict=True)]
    output, lse = attend(
        q,
        caches[0],
        indices.unsqueeze(1),
        topk_length=lengths,
        attn_sink=sink,
        **kwargs,
    )
    expected, expected_lse = attention_reference(
        q.cpu(), rows, None if sink is None else sink.cpu(), SCALE
    )
    assert output.dtype == torch.bfloat16 and not output.isnan().any()
    torch.testing.assert_close(output.cpu().double(), expected, atol=1e-3, rtol=2.0**-7)
    torch.testing.assert_close(lse.cpu().double(), expected_lse, atol=1e-4, rtol=1e-5)
    return output, lse


def queries(generator, tokens, device, magnitude=1.0):
    q = torch.randn(tokens, HEADS, 512, generator=generator) * magnitude
    return q.bfloat16().to(device)


def indices(generator, tokens, width, limit, device):
    drawn = torch.randint(0, limit, (tokens, width), generator=generator)
    return drawn.int().to(device)


@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("with_extra", [False, True])
def test_random_candidates(device, generator, caches, with_sink, with_extra):
    tokens = 6
    main = indices(generator, tokens, 128, 512, device)
    main[0, 100:] = -1
    lengths = torch.tensor([100, 128, 1, 0, 64, 127], dtype=torch.int32, device=device)
    extra = indices(generator, tokens, 64, 64, device) if with_extra else None
    extra_lengths = None
    if with_extra:
        extra[:, 5] = -1
        extra_lengths = torch.tensor([64, 0, 1, 0, 3, 2], dtype=torch.int32).to(device)
    sink = torch.randn(HEADS, generator=generator).to(device) if with_sink else None
    check(
        queries(generator, tokens, device),
        caches,
        main,
        lengths,
        extra,
        extra_lengths,
        sink,
    )


def test_nothing_valid_gives_zeros_and_minus_infinity(device, generator, caches):
    main = torch.full((3, 128), -1, dtype=torch.int32, device=device)
    sink = torch.zeros(HEADS, device=device)
    for attn_sink in (None, sink):
        output, lse = check(queries(generator, 3, device), caches, main, sink=attn_sink)
        assert (output == 0).all() and torch.isneginf(lse).all()


def test_one_candidate_repeated_counts_as_often(device, generator, caches):
    q = queries(generator, 1, device)
    once = torch.full((1, 128), -1, dtype=torch.int32, device=device)
    once[0, 3] = 77
    _, lse_once = check(q, caches, once)
    _, lse = check(q, caches, torch.full_like(once, 77))
    expected = lse_once + math.log(128)
    torch.testing.assert_close(lse, expected, atol=1e-4, rtol=1e-5)


def test_slots_at_page_edges(device, generator, caches):
    edges = [0, 63, 64, 127, 128, 255, 256, 319, 320, 511]
    main = torch.full((2, 64), -1, dtype=torch.int32, device=device)
    main[:, : len(edges)] = torch.tensor(edges, dtype=torch.int32)
    extra = torch.full((2, 64), -1, dtype=torch.int32, device=device)
    extra[:, :4] = torch.tensor([0, 1, 62, 63], dtype=torch.int32)
    check(queries(generator, 2, device), caches, main, extra=extra)


@pytest.mark.parametrize("value", [0.0, math.inf, -math.inf, 80.0])
def test_sinks_at_their_extremes(device, generator, caches, value):
    main = indices(generator, 2, 128, 512, device)
    sink = torch.full((HEADS,), value, device=device)
    output, _ = check(queries(generator, 2, device), caches, main, sink=sink)
    if value == math.inf:
        assert (output == 0).all()


def test_large_logits_do_not_overflow(device, generator, caches):
    main = indices(generator, 2, 128, 512, device)
    check(queries(generator, 2, device, magnitude=100.0), caches, main)


def test_chunks_of_queries_do_not_change_the_answer(
    device, generator, caches, monkeypatch
):
    q = queries(generator, 9, device)
    main = indices(generator, 9, 128, 512, device)
    whole, whole_lse = attend(q, caches[0], main.unsqueeze(1))
    monkeypatch.setattr(torch_backend, "_MAX_GATHERED_VALUES", 2 * 128 * 512)
    sizes = []
    attend_chunk = torch_backend._attend
    monkeypatch.setattr(
        torch_backend,
        "_attend",
        lambda q, *args: (sizes.append(len(q)), attend_chunk(q, *args))[1],
    )
    chunked, chunked_lse = attend(q, caches[0], main.unsqueeze(1))
    assert sizes == [2, 2, 2, 2, 1]
    torch.testing.assert_close(chunked, whole)
    torch.testing.assert_close(chunked_lse, whole_lse)
