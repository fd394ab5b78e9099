"""Compressed rows by the compressor's plans: which count, and where they land."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import INVALID_SEQ_LEN, decode_plan, prefill_plan
from support.pools import build_pool, random_rows
from support.references import norm_rope_reference, rope_table

from sglang_dsv4_nvfp4.quantize import dequantize
from sglang_dsv4_nvfp4.store.compress_plan import counted_slots

EPS = 1e-6
LAYERS = {4: 1, 128: 2}


def store(pool, ratio, rows, plan, weight, freqs, out_loc):
    # The name that SGLang's compressor calls, in the module it calls it from.
    from sglang.srt.layers.attention.dsv4 import compressor_v2

    layer = LAYERS[ratio]
    compressor_v2.compress_norm_rope_store(
        rows,
        plan,
        norm_weight=weight,
        norm_eps=EPS,
        freq_cis=freqs,
        out_loc=out_loc,
        kvcache=pool.get_extra_key_buffer(layer).view(torch.uint8),
        page_size=pool.get_extra_key_page_size(layer),
        layout=pool.get_extra_key_layout(layer),
        use_fp4=False,
        bf16_store=False,
        kvcache_scale=None,
        rope_cache=None,
        fp4_k_write_metadata=None,
        fp8_2buff=False,
        kvcache_rope=None,
    )


def stored_rows(pool, ratio):
    """Slot to ``[512]`` row, for every slot that holds anything."""
    view = getattr(pool, f"c{ratio}_kv_pool").kernel_view(0)
    slots = torch.arange(view.shape[0] * view.shape[1], device=view.device)
    rows = dequantize(view, slots).cpu()
    return {slot: rows[slot] for slot in slots.tolist() if rows[slot].any()}


def finished_row(row, weight, freqs, position):
    positions = torch.tensor([position])
    finished = norm_rope_reference(
        row.cpu()[None], weight.cpu(), EPS, freqs.cpu(), positions
    )
    return finished[0]


def assert_rows(stored, expected):
    assert sorted(stored) == sorted(expected)
    for slot, row in expected.items():
        error = (stored[slot].double() - row).norm() / row.norm()
        assert error < 0.15, slot
        rope_bound = row[448:].abs() * 2.0**-8 + 1e-6
        assert ((stored[slot][448:].double() - row[448:]).abs() <= rope_bound).all()


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request):
    """SGLang's compressor computes in FP32."""
    return request.param


@pytest.fixture
def weight(device, generator, dtype):
    return (1 + 0.1 * torch.randn(512, generator=generator)).to(device, dtype)


@pytest.mark.parametrize(
    ("ratio", "seq_lens", "counting"),
    [
        (4, [3, 4, 5, 8, 1], {1: 0, 3: 4}),
        (128, [127, 128, 129, 256, 1], {1: 0, 3: 128}),
    ],
)
def test_decode_rows_that_end_a_group(
    device, generator, weight, dtype, ratio, seq_lens, counting
):
    pool, freqs = build_pool(device), rope_table(300).to(device)
    rows = random_rows(generator, len(seq_lens), device).to(dtype)
    out_loc = torch.tensor([1, 3, 0, 5, 2], device=device)
    store(
        pool, ratio, rows, decode_plan(ratio, seq_lens, device), weight, freqs, out_loc
    )
    expected = {
        out_loc[row].item(): finished_row(rows[row], weight, freqs, position)
        for row, position in counting.items()
    }
    assert_rows(stored_rows(pool, ratio), expected)


@pytest.mark.parametrize("ratio", [4, 128])
def test_prefill_rows_go_by_their_ragged_token(device, generator, weight, dtype, ratio):
    pool, freqs = build_pool(device), rope_table(600).to(device)
    plan_rows = [
        (2 * ratio, 6),
        (INVALID_SEQ_LEN, 0),
        (ratio, 2),
        (INVALID_SEQ_LEN, 65535),
    ]
    rows = random_rows(generator, len(plan_rows), device).to(dtype)
    # Eight query tokens; those without a plan row must stay out of the pool.
    out_loc = torch.tensor([1, 2, 3, 4, 5, 0, 2, 1], device=device)
    plan = prefill_plan(ratio, plan_rows, device)
    store(pool, ratio, rows, plan, weight, freqs, out_loc)
    expected = {}
    for row, slot, position in ((0, 2, ratio), (2, 3, 0)):
        expected[slot] = finished_row(rows[row], weight, freqs, position)
    assert_rows(stored_rows(pool, ratio), expected)


@pytest.mark.parametrize("ratio", [4, 128])
def test_a_later_batch_does_not_see_an_earlier_ones_rows(
    device, generator, weight, dtype, ratio
):
    """Staging is reused: a row left over from the last call must not be stored."""
    pool, freqs = build_pool(device), rope_table(600).to(device)
    full = random_rows(generator, 4, device).to(dtype)
    everything = prefill_plan(ratio, [(ratio, row) for row in range(4)], device)
    slots = torch.tensor([0, 1, 2, 3], device=device)
    store(pool, ratio, full, everything, weight, freqs, slots)
    before = {slot: row.clone() for slot, row in stored_rows(pool, ratio).items()}
    one = prefill_plan(ratio, [(ratio, 1)], device)
    store(
        pool,
        ratio,
        full[:1],
        one,
        weight,
        freqs,
        torch.tensor([4, 5, 4, 4], device=device),
    )
    after = stored_rows(pool, ratio)
    assert sorted(after) == [0, 1, 2, 3, 5]
    assert all(torch.equal(after[slot], before[slot]) for slot in range(4))


@pytest.mark.parametrize("plan", ["decode", "prefill", "invalid"])
def test_empty_plans_write_nothing(device, weight, plan):
    pool, freqs = build_pool(device), rope_table(10).to(device)
    rows = torch.empty(0, 512, device=device, dtype=torch.bfloat16)
    out_loc = torch.empty(0, dtype=torch.int64, device=device)
    made = {
        "decode": decode_plan(4, [], device),
        "prefill": prefill_plan(4, [], device),
        "invalid": prefill_plan(4, [(INVALID_SEQ_LEN, 0)] * 2, device),
    }[plan]
    if plan == "invalid":
        rows = torch.ones(2, 512, device=device).bfloat16()
        out_loc = torch.tensor([3, 4, 5], device=device)
    store(pool, 4, rows, made, weight, freqs, out_loc)
    assert stored_rows(pool, 4) == {}


def test_the_indexers_store_passes_through(device, monkeypatch):
    from sglang.kernels.ops.attention.dsv4 import compress, compress_norm_rope_store

    calls = []
    monkeypatch.setattr(
        compress,
        "_jit_compress_norm_rope_module",
        lambda *key: SimpleNamespace(forward_fp4=lambda *args: calls.append(args)),
    )
    keys, out_loc = torch.zeros(2, 68, dtype=torch.uint8), torch.tensor([3, 4])
    compress_norm_rope_store(
        torch.zeros(2, 128),
        decode_plan(4, [4, 8]),
        norm_weight=torch.ones(128),
        norm_eps=1e-6,
        freq_cis=torch.ones(16, 32, dtype=torch.complex64),
        out_loc=out_loc,
        kvcache=keys,
        page_size=64,
        use_fp4=True,
    )
    (arguments,) = calls
    assert any(argument is keys for argument in arguments)
    assert any(argument is out_loc for argument in arguments)


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from([4, 128]),
    st.lists(st.integers(0, 1000), max_size=12),
)
def test_decode_slots_count_exactly_the_group_ends(ratio, seq_lens):
    out_loc = torch.arange(len(seq_lens)) + 50
    slots = counted_slots(decode_plan(ratio, seq_lens), out_loc)
    expected = [
        50 + row if length > 0 and length % ratio == 0 else -1
        for row, length in enumerate(seq_lens)
    ]
    assert slots.tolist() == expected


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_prefill_slots_count_exactly_the_planned_tokens(data):
    num_tokens = data.draw(st.integers(1, 20))
    tokens = data.draw(st.lists(st.integers(0, num_tokens - 1), unique=True))
    padding = data.draw(st.integers(0, 3))
    rows = [(4, token) for token in tokens] + [(INVALID_SEQ_LEN, 0)] * padding
    out_loc = torch.arange(num_tokens, dtype=torch.int32) + 7
    slots = counted_slots(prefill_plan(4, rows), out_loc)
    expected = [token + 7 if token in tokens else -1 for token in range(num_tokens)]
    assert slots.tolist() == expected and slots.dtype == torch.int32
