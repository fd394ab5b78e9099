"""The store kernels against the reference quantizer, byte for byte.

Interpreted on a CPU, compiled on a GPU. Rows whose norm and rotation are exact in FP32
hold the fused kernels to the reference too; rows at random are in ``test/srt/store``.
"""

import pytest
import torch
from support.groups import groups_of_every_kind
from support.plans import INVALID_SEQ_LEN, decode_plan, prefill_plan
from support.pools import random_rows

from sglang_dsv4_nvfp4.config import ScaleRule
from sglang_dsv4_nvfp4.layout import BYTES_PER_TOKEN, NOPE_DIM, NUM_GROUPS
from sglang_dsv4_nvfp4.quantize import encode_e4m3, quantize_append
from sglang_dsv4_nvfp4.store import fused

POISON = 0xA5
EXACT_EPS = 0.25


@pytest.fixture(params=list(ScaleRule), ids=lambda rule: rule.value)
def rule(request, monkeypatch):
    monkeypatch.setenv("SGLANG_SM120_NVFP4_SCALE_RULE", request.param.value)
    return request.param


def pages(device, page_size=64, num_slots=512, gap=0):
    stride = page_size * BYTES_PER_TOKEN + gap
    num_pages = num_slots // page_size
    storage = torch.full((num_pages * stride,), POISON, dtype=torch.uint8)
    return storage.to(device).as_strided(
        (num_pages, page_size, BYTES_PER_TOKEN), (stride, BYTES_PER_TOKEN, 1)
    )


def rows_of_every_kind(generator, count):
    """Gaussian rows, and rows of groups from subnormal to overflowing, with NaNs."""
    rows = random_rows(generator, count)
    groups = groups_of_every_kind()
    chosen = torch.randperm(len(groups), generator=generator)
    half = count // 2
    wild = groups[chosen[: half * NUM_GROUPS]].view(half, NOPE_DIM)
    rows[:half, :NOPE_DIM] = wild
    return rows


def assert_appended(rows, slots, rule, **kwargs):
    device = rows.device
    unique = kwargs.pop("unique_slots", False)
    expected, actual = pages(device, **kwargs), pages(device, **kwargs)
    quantize_append(rows, slots, expected, rule)
    fused.append(rows, slots, actual, unique_slots=unique)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("page_size", [64, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_append_of_values_of_every_kind(device, generator, rule, page_size, dtype):
    rows = rows_of_every_kind(generator, 150).to(device)
    slots = torch.randperm(512, generator=generator)[:150].to(device, dtype)
    slots[7], slots[8], slots[9] = -1, 512, -(2**31)
    assert_appended(rows, slots, rule, page_size=page_size, unique_slots=True)


def test_append_settles_equal_slots(device, generator, rule):
    rows = random_rows(generator, 90, device)
    slots = torch.randint(-2, 12, (90,), generator=generator).to(device)
    assert_appended(rows, slots, rule)


def test_equal_slots_far_apart_are_settled(device, generator):
    """Past one block of earlier slots, and at its edges."""
    count = 2050 if device == "cuda" else 1030
    rows = random_rows(generator, count, device)
    slots = torch.full((count,), -1, device=device)
    for first, last in ((0, count - 1), (1022, 1024), (1023, 1025)):
        slots[first] = slots[last] = first % 512
    assert_appended(rows, slots, ScaleRule.AMAX6)


def test_append_of_strided_rows_into_pages_that_are_apart(device, generator, rule):
    wide = random_rows(generator, 40, device).repeat(1, 3)
    slots = torch.randperm(128, generator=generator)[:20].to(device)
    assert_appended(wide[::2, 512:1024], slots, rule, num_slots=128, gap=32)


@pytest.mark.parametrize(("width", "start"), [(1025, 0), (1024, 1)])
def test_append_of_rows_that_start_between_words(device, generator, width, start):
    wide = torch.zeros(6, width, dtype=torch.bfloat16, device=device)
    rows = wide[:, start : start + 512]
    rows.copy_(random_rows(generator, 6))
    slots = torch.arange(6, device=device)
    assert_appended(rows, slots, ScaleRule.AMAX6, num_slots=64)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_append_of_few_rows(device, generator, rule, count):
    rows = random_rows(generator, count, device)
    slots = torch.arange(count, device=device) * 3
    assert_appended(rows, slots, rule, num_slots=64)


def exact_case(device, generator, count):
    """Rows whose finished values are exact: a norm factor of 1, weights that are powers
    of two, and quarter turns."""
    rows = torch.randint(0, 2, (count, 512), generator=generator) * 2.0 - 1
    # Zeros inside the groups: the mean square is 0.75, which EXACT_EPS makes 1.
    rows[:, 1::4] = 0.0
    weight = 2.0 ** torch.randint(-3, 4, (512,), generator=generator)
    quarter = torch.randint(0, 4, (64, 32), generator=generator)
    turns = torch.tensor([1, 1j, -1, -1j], dtype=torch.complex64)[quarter]
    positions = torch.randint(0, 64, (count,), generator=generator)
    normed = rows * weight
    pairs = torch.view_as_complex(normed[:, 448:].reshape(count, 32, 2).contiguous())
    turned = torch.view_as_real(pairs * turns[positions]).reshape(count, 64)
    finished = torch.cat([normed[:, :448], turned], dim=1)
    moved = (rows, weight, turns, positions, finished)
    rows, weight, turns, positions, finished = (value.to(device) for value in moved)
    return rows.bfloat16(), weight.bfloat16(), turns, positions, finished.bfloat16()


def test_window_store_of_exact_rows(device, generator, rule):
    rows, weight, turns, positions, finished = exact_case(device, generator, 30)
    slots = torch.randperm(512, generator=generator)[:30].int().to(device)
    slots[3], slots[4] = -1, 5000
    expected, actual = pages(device), pages(device)
    quantize_append(finished, slots, expected, rule)
    fused.store_window_rows(
        kv=rows,
        kv_weight=weight,
        eps=EXACT_EPS,
        freqs_cis=turns,
        positions=positions,
        slots=slots,
        cache=actual,
    )
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("is_decode", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_compressed_store_of_exact_rows(
    device, generator, rule, ratio, is_decode, dtype
):
    """Group starts differ by the ratio, so their turns come from a table of turns."""
    rows, weight, turns, _, _ = exact_case(device, generator, 12)
    rows, weight = rows.to(dtype), weight.to(dtype)
    table = turns.repeat(ratio * 4, 1)
    page_size = 64 if ratio == 4 else 2
    if is_decode:
        seq_lens = [ratio * (1 + row % 3) + (row % 4 == 1) for row in range(12)]
        plan = decode_plan(ratio, seq_lens, device)
        sources = [row if row % 4 != 1 else None for row in range(12)]
    else:
        seq_lens = [ratio * (1 + row % 3) for row in range(12)]
        seq_lens[5] = seq_lens[11] = INVALID_SEQ_LEN
        tokens = torch.randperm(30, generator=generator)[:12].tolist()
        plan = prefill_plan(ratio, list(zip(seq_lens, tokens, strict=True)), device)
        sources = [
            None if length == INVALID_SEQ_LEN else token
            for length, token in zip(seq_lens, tokens, strict=True)
        ]
    num_sources = 12 if is_decode else 30
    out_loc = torch.randperm(128, generator=generator)[:num_sources].to(device)
    counted = [row for row in range(12) if sources[row] is not None]
    starts = torch.tensor([seq_lens[row] - ratio for row in counted], device=device)
    normed = rows[counted].float() * weight.float()
    pairs = torch.view_as_complex(normed[:, 448:].reshape(-1, 32, 2).contiguous())
    turned = torch.view_as_real(pairs * table[starts]).reshape(-1, 64)
    finished = torch.cat([normed[:, :448], turned], dim=1).bfloat16()
    slots = out_loc[[sources[row] for row in counted]]

    expected = pages(device, page_size, num_slots=128)
    actual = pages(device, page_size, num_slots=128)
    quantize_append(finished, slots, expected, rule)
    fused.store_compressed_rows(
        rows,
        plan,
        norm_weight=weight,
        norm_eps=EXACT_EPS,
        freq_cis=table,
        out_loc=out_loc,
        cache=actual,
    )
    assert torch.equal(actual, expected)


def magnitude_rows(magnitudes):
    """BF16 rows whose groups have these largest values, with smaller ones beside."""
    groups = torch.zeros(-(-len(magnitudes) // NUM_GROUPS) * NUM_GROUPS, 16)
    groups[: len(magnitudes), 0] = magnitudes
    groups[:, 5] = -groups[:, 0] / 2
    groups[:, 9] = groups[:, 0] / 3
    rows = torch.zeros(len(groups) // NUM_GROUPS, 512)
    rows[:, :NOPE_DIM] = groups.view(-1, NOPE_DIM)
    return rows.bfloat16()


def test_append_of_every_magnitude(device, rule):
    """Every BF16 value as a group's largest; without a GPU, those that are ties of
    E4M3's smallest scales, which a fused multiply-add would round up."""
    magnitudes = torch.tensor([0.005859375, 0.029296875, 0.052734375, 0.076171875])
    if device == "cuda":
        bits = torch.arange(0x7F80, dtype=torch.int32).to(torch.uint16)
        magnitudes = bits.view(torch.bfloat16).float()
    rows = magnitude_rows(magnitudes).to(device)
    slots = torch.arange(len(rows), device=device)
    num_slots = -(-len(rows) // 64) * 64
    assert_appended(rows, slots, rule, num_slots=num_slots)


def test_scale_of_every_magnitude():
    """The kernels multiply with the FP32 nearest 1/6, which changes no scale."""
    bits = torch.arange(0x7F81, dtype=torch.int32).to(torch.uint16)
    magnitudes = bits.view(torch.bfloat16).float()
    divided = magnitudes / torch.full_like(magnitudes, 6.0)
    sixth = torch.full_like(magnitudes, 1.0 / 6.0)
    assert torch.equal(encode_e4m3(divided), encode_e4m3(magnitudes * sixth))


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("latent_kv", {"rows": torch.zeros(2, 512)}),
        ("latent_kv", {"rows": torch.zeros(2, 448).bfloat16()}),
        ("slot_mapping", {"slots": torch.zeros(2)}),
        ("slot_mapping", {"slots": torch.zeros(3).int()}),
        ("cache", {"cache": torch.zeros(1, 64, 584, dtype=torch.uint8)}),
        ("empty cache", {"cache": torch.zeros(0, 64, 384, dtype=torch.uint8)}),
        (
            "multiples of 16 bytes",
            {
                "cache": torch.zeros(64 * 384 + 8, dtype=torch.uint8)[8:].view(
                    1, 64, 384
                )
            },
        ),
    ],
)
def test_bad_input_of_the_append_is_named_before_a_launch(named, change):
    made = dict(
        rows=torch.zeros(2, 512).bfloat16(),
        slots=torch.zeros(2).int(),
        cache=torch.zeros(1, 64, 384, dtype=torch.uint8),
    )
    made |= change
    with pytest.raises(ValueError, match=named):
        fused.append(made["rows"], made["slots"], made["cache"])


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("kv must be bfloat16", {"kv": torch.zeros(2, 512)}),
        ("weight", {"kv_weight": torch.ones(448)}),
        ("positions", {"positions": torch.zeros(2)}),
        ("positions", {"positions": torch.zeros(3).long()}),
        ("freqs_cis", {"freqs_cis": torch.ones(8, 64)}),
        ("freqs_cis", {"freqs_cis": torch.ones(8, 64, dtype=torch.complex64)[:, ::2]}),
    ],
)
def test_bad_input_of_the_window_store_is_named(named, change):
    made = dict(
        kv=torch.zeros(2, 512).bfloat16(),
        kv_weight=torch.ones(512).bfloat16(),
        eps=1e-6,
        freqs_cis=torch.ones(8, 32, dtype=torch.complex64),
        positions=torch.zeros(2).long(),
        slots=torch.zeros(2).int(),
        cache=torch.zeros(1, 64, 384, dtype=torch.uint8),
    )
    with pytest.raises(ValueError, match=named):
        fused.store_window_rows(**{**made, **change})


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("kv must be float32 or bfloat16", {"kv": torch.zeros(2, 512).half()}),
        ("plan has 3 rows", {"plan": decode_plan(4, [4, 8, 12])}),
        ("out_loc has 1 slots", {"out_loc": torch.zeros(1).long()}),
        ("weight", {"norm_weight": torch.ones(511)}),
    ],
)
def test_bad_input_of_the_compressed_store_is_named(named, change):
    made = dict(
        kv=torch.zeros(2, 512),
        plan=decode_plan(4, [4, 8]),
        norm_weight=torch.ones(512),
        norm_eps=1e-6,
        freq_cis=torch.ones(8, 32, dtype=torch.complex64),
        out_loc=torch.zeros(2).long(),
        cache=torch.zeros(1, 64, 384, dtype=torch.uint8),
    )
    with pytest.raises(ValueError, match=named):
        fused.store_compressed_rows(**{**made, **change})
