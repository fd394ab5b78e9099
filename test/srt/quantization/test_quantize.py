"""The reference quantizer's addressing and its treatment of odd slots."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pools import random_rows

from sglang_dsv4_nvfp4.config import ScaleRule
from sglang_dsv4_nvfp4.layout import BYTES_PER_TOKEN, DATA_BYTES, SCALE_BYTES
from sglang_dsv4_nvfp4.quantize import (
    dequantize,
    dequantize_rows,
    encode_e4m3,
    quantize_append,
    quantize_pack,
    quantize_rows,
)

POISON = 0xA5


def poisoned_pages(num_pages, page_size, gap=0):
    """Pages full of a pattern, ``gap`` bytes apart."""
    stride = page_size * BYTES_PER_TOKEN + gap
    storage = torch.full((num_pages * stride,), POISON, dtype=torch.uint8)
    return storage.as_strided(
        (num_pages, page_size, BYTES_PER_TOKEN), (stride, BYTES_PER_TOKEN, 1)
    )


def read_slot(cache, slot):
    """A slot's data and scale bytes, by arithmetic of its own."""
    page_size = cache.shape[1]
    start = (slot // page_size) * cache.stride(0)
    entry = slot % page_size
    flat = cache.as_strided((cache.shape[0] * cache.stride(0),), (1,))
    data = start + entry * DATA_BYTES
    scale = start + page_size * DATA_BYTES + entry * SCALE_BYTES
    return torch.cat(
        [flat[data : data + DATA_BYTES], flat[scale : scale + SCALE_BYTES]]
    )


@st.composite
def appends(draw):
    page_size = draw(st.sampled_from([1, 2, 3, 16, 64]))
    num_pages = draw(st.integers(1, 4))
    limit = page_size * num_pages
    slot = st.one_of(st.integers(0, limit - 1), st.just(-1), st.integers(-9, 3 * limit))
    slots = draw(st.lists(slot, max_size=24))
    return page_size, num_pages, slots, draw(st.sampled_from([0, 16]))


@settings(deadline=None, max_examples=150)
@given(appends(), st.sampled_from([torch.int32, torch.int64]))
def test_append_writes_each_slot_from_its_lowest_row_and_nothing_else(case, dtype):
    page_size, num_pages, slots, gap = case
    rows = random_rows(torch.Generator().manual_seed(len(slots)), len(slots))
    cache = poisoned_pages(num_pages, page_size, gap)
    quantize_append(rows, torch.tensor(slots, dtype=dtype), cache)

    winners = {}
    for row, slot in enumerate(slots):
        if 0 <= slot < page_size * num_pages:
            winners.setdefault(slot, row)
    data, scales = quantize_rows(rows)
    untouched = torch.full((BYTES_PER_TOKEN,), POISON, dtype=torch.uint8)
    for slot in range(page_size * num_pages):
        expected = untouched
        if slot in winners:
            row = winners[slot]
            expected = torch.cat([data[row], scales[row]])
        assert torch.equal(read_slot(cache, slot), expected), slot


@settings(deadline=None, max_examples=60)
@given(appends())
def test_dequantize_reads_what_append_wrote_and_zeros_elsewhere(case):
    page_size, num_pages, slots, gap = case
    rows = random_rows(torch.Generator().manual_seed(1), len(slots))
    cache = poisoned_pages(num_pages, page_size, gap)
    cache.zero_()
    slots = torch.tensor(slots, dtype=torch.int64)
    quantize_append(rows, slots, cache)
    read = dequantize(cache, slots)
    in_range = (slots >= 0) & (slots < page_size * num_pages)
    assert (read[~in_range] == 0).all()
    alone = quantize_pack(rows[None]) if len(slots) else None
    for row, slot in enumerate(slots.tolist()):
        if in_range[row] and slots.tolist().index(slot) == row:
            expected = dequantize(alone, torch.tensor([row]))[0]
            assert torch.equal(read[row], expected)


def test_pack_is_append_to_every_slot(generator):
    rows = random_rows(generator, 3 * 16).view(3, 16, 512)
    cache = poisoned_pages(3, 16)
    quantize_append(rows.view(-1, 512), torch.arange(48), cache)
    assert torch.equal(quantize_pack(rows), cache)


def test_rope_bits_pass_through_and_padding_is_zero():
    bits = torch.arange(512, dtype=torch.int32) * 127 + 0x7F80
    row = bits.to(torch.uint16).view(torch.bfloat16)[None]
    cache = poisoned_pages(1, 2)
    quantize_append(row, torch.tensor([1]), cache)
    stored = read_slot(cache, 1)
    rope = stored[224:352].view(torch.int16)
    assert torch.equal(rope, row[0, 448:].view(torch.int16))
    assert (stored[352 + 28 :] == 0).all()


def test_error_of_gaussian_rows_is_that_of_fp4(generator):
    rows = random_rows(generator, 256)
    cache = quantize_pack(rows[None])
    read = dequantize(cache, torch.arange(256))
    error = (read[:, :448].float() - rows[:, :448].float()).norm()
    # E2M1 with a scale per 16 loses about a tenth of a Gaussian's norm.
    assert 0.05 < error / rows[:, :448].float().norm() < 0.12
    assert torch.equal(read[:, 448:], rows[:, 448:])


def group_errors(rows, rule):
    """``[n, 28]`` squared errors in FP64, by dequantizing what is stored."""
    stored = dequantize_rows(*quantize_rows(rows, rule))[:, :448].double()
    return (stored - rows[:, :448].double()).square().view(-1, 28, 16).sum(dim=-1)


def test_4over6_never_loses_and_often_wins(generator):
    rows = random_rows(generator, 500)
    amax6 = group_errors(rows, ScaleRule.AMAX6)
    four_over_six = group_errors(rows, ScaleRule.FOUR_OVER_SIX)
    # Equal errors one FP32 rounding apart may be taken for a gain.
    assert (four_over_six <= amax6 * (1 + 1e-6)).all()
    assert (four_over_six < amax6).float().mean() > 0.2


def test_4over6_takes_4_where_its_codes_fit():
    row = torch.zeros(1, 512).bfloat16()
    # With 6 on top, 3 of 4 falls between codes 4 and 6; with 4 on top it is exact.
    row[0, :4] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    _, scales = quantize_rows(row, ScaleRule.FOUR_OVER_SIX)
    assert scales[0, 0] == encode_e4m3(torch.tensor([1.0]))[0]
    assert group_errors(row, ScaleRule.FOUR_OVER_SIX)[0, 0] == 0
    assert group_errors(row, ScaleRule.AMAX6)[0, 0] > 0


@pytest.mark.parametrize(
    ("rows", "slots", "cache", "named"),
    [
        (torch.zeros(2, 512), torch.zeros(2), None, "latent_kv"),
        (torch.zeros(2, 448).bfloat16(), torch.zeros(2), None, "latent_kv"),
        (torch.zeros(2, 512).bfloat16(), torch.zeros(2), None, "slot_mapping"),
        (torch.zeros(2, 512).bfloat16(), torch.zeros(3).int(), None, "slot_mapping"),
        (
            torch.zeros(2, 512).bfloat16(),
            torch.zeros(2).int(),
            torch.zeros(1, 4, 584, dtype=torch.uint8),
            "cache",
        ),
        (
            torch.zeros(2, 512).bfloat16(),
            torch.zeros(2).int(),
            torch.zeros(0, 4, 384, dtype=torch.uint8),
            "empty cache",
        ),
    ],
)
def test_bad_input_is_named(rows, slots, cache, named):
    if cache is None:
        cache = torch.zeros(1, 4, BYTES_PER_TOKEN, dtype=torch.uint8)
    with pytest.raises(ValueError, match=named):
        quantize_append(rows, slots, cache)
