"""Window rows from un-normed projections into pages."""

import pytest
import torch
from support.pools import PAGE_SIZE, build_pool, random_rows
from support.references import norm_rope_reference, rope_table

from sglang_dsv4_nvfp4.quantize import dequantize, quantize_append
from sglang_dsv4_nvfp4.store.finish import norm_rope

EPS = 1e-6


def store(pool, rows, slots, weight, freqs, positions, layer=0):
    pool.set_swa_key_buffer_radix_fused_norm_rope(
        layer_id=layer,
        swa_loc=slots,
        kv=rows,
        kv_weight=weight,
        eps=EPS,
        freqs_cis=freqs,
        positions=positions,
    )


@pytest.fixture
def case(device, generator):
    """Rows, slots, weight, rotations and positions of a step of 24 tokens."""
    weight = (1 + 0.1 * torch.randn(512, generator=generator)).bfloat16().to(device)
    slots = torch.randperm(3 * PAGE_SIZE, generator=generator)[:24].int().to(device)
    positions = torch.randint(0, 100, (24,), generator=generator).to(device)
    rows = random_rows(generator, 24, device) * 7
    return rows, slots, weight, rope_table(100).to(device), positions


def test_reference_is_one_rounding_from_fp64(case):
    rows, _, weight, freqs, positions = (value.cpu() for value in case)
    finished = norm_rope(rows, weight, EPS, freqs, positions)
    expected = norm_rope_reference(rows, weight, EPS, freqs, positions)
    # Half a BF16 step, and the last bit of FP32 at its boundary.
    bound = expected.abs() * 2.0**-8 + 1e-6
    assert ((finished.double() - expected).abs() <= bound).all()


def test_norm_rope_store_holds_quantized_finished_rows(device, case):
    rows, slots, weight, freqs, positions = case
    pool = build_pool(device)
    store(pool, rows, slots, weight, freqs, positions, layer=2)
    expected = norm_rope_reference(
        *(v.cpu() for v in (rows, weight)), EPS, freqs.cpu(), positions.cpu()
    )
    read = dequantize(pool.swa_kv_pool.kernel_view(2), slots).cpu().double()
    rope_bound = expected[:, 448:].abs() * 2.0**-8 + 1e-6
    assert ((read[:, 448:] - expected[:, 448:]).abs() <= rope_bound).all()
    error = (read - expected).norm() / expected.norm()
    assert error < 0.12
    written = torch.zeros(3 * PAGE_SIZE + PAGE_SIZE, dtype=torch.bool)
    written[slots.long().cpu()] = True
    everything = torch.arange(len(written), device=device)
    stored = dequantize(pool.swa_kv_pool.kernel_view(2), everything)
    assert torch.equal((stored != 0).any(dim=1).cpu(), written)


def test_strided_projection_is_read_and_left_alone(device, case):
    rows, slots, weight, freqs, positions = case
    wide = torch.full((24, 1024 + 512), 3.0, device=device).bfloat16()
    wide[:, 1024:] = rows
    before = wide.clone()
    dense, strided = build_pool(device), build_pool(device)
    store(dense, rows, slots, weight, freqs, positions)
    store(strided, wide[:, 1024:], slots, weight, freqs, positions)
    assert torch.equal(wide, before)
    assert torch.equal(dense.swa_kv_pool.kv_buffer[0], strided.swa_kv_pool.kv_buffer[0])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_positions_of_either_width(device, case, dtype):
    rows, slots, weight, freqs, positions = case
    pool, other = build_pool(device), build_pool(device)
    store(pool, rows, slots, weight, freqs, positions.long())
    store(other, rows, slots, weight, freqs, positions.to(dtype))
    assert torch.equal(pool.swa_kv_pool.kv_buffer[0], other.swa_kv_pool.kv_buffer[0])


def test_an_empty_step_writes_nothing(device, case):
    _, _, weight, freqs, _ = case
    pool = build_pool(device)
    empty = torch.empty(0, device=device, dtype=torch.int32)
    rows = torch.empty(0, 512, device=device, dtype=torch.bfloat16)
    store(pool, rows, empty, weight, freqs, empty)
    pool.set_swa_key_buffer_radix_fused(0, empty, rows)
    assert not pool.swa_kv_pool.kv_buffer[0].any()


def test_bf16_rows_and_unnormed_rows_land_alike(device, case):
    """The CP path stores finished rows; they must be the bytes of the normal path."""
    rows, slots, weight, freqs, positions = case
    pool = build_pool(device)
    store(pool, rows, slots, weight, freqs, positions)
    finished = norm_rope(rows, weight, EPS, freqs, positions)
    expected = torch.zeros_like(pool.swa_kv_pool.kernel_view(0))
    quantize_append(finished, slots, expected)
    actual = pool.swa_kv_pool.kernel_view(0)
    if device == "cpu":
        assert torch.equal(actual, expected)
    else:
        # SGLang's kernel sums squares in another order: a few codes move by one.
        assert (actual != expected).float().mean() < 1e-3
