"""The pools that SGLang builds under NVFP4: bytes, views, setters, refusals."""

import pytest
import torch
from support.pools import PAGE_SIZE, build_pool, fp8, random_rows

from sglang_dsv4_nvfp4.layout import NVFP4_KV_LAYOUT
from sglang_dsv4_nvfp4.machine import versions
from sglang_dsv4_nvfp4.mem_cache import token_to_kv_pool
from sglang_dsv4_nvfp4.quantize import dequantize, quantize_append


@pytest.fixture
def pool(device):
    return build_pool(device)


def test_each_cache_has_384_bytes_a_token_and_no_padding(pool):
    for sub_pool, page_size, layers in (
        (pool.swa_kv_pool, 256, 3),
        (pool.c4_kv_pool, 64, 1),
        (pool.c128_kv_pool, 2, 1),
    ):
        assert sub_pool.page_size == page_size
        assert len(sub_pool.kv_buffer) == layers
        for buffer in sub_pool.kv_buffer:
            assert buffer.dtype == torch.uint8 and buffer.is_contiguous()
            assert buffer.shape[1] == page_size * 384
        # HiCache sizes its host pages by this.
        assert sub_pool.bytes_per_page_padded == page_size * 384
        assert sub_pool.get_bytes_per_token() == 384


def test_rows_are_the_logical_pages_of_the_stock_pool(device, pool):
    stock = build_stock_pool(device)
    for name in ("swa_kv_pool", "c4_kv_pool", "c128_kv_pool"):
        ours, theirs = getattr(pool, name), getattr(stock, name)
        assert ours.kv_buffer[0].shape[0] == theirs.kv_buffer[0].shape[0]


def build_stock_pool(device):
    with fp8():
        return build_pool(device)


def test_getters_name_the_format(pool):
    assert pool.get_swa_key_page_size() == 256
    assert pool.get_swa_key_bytes_per_token() == 384
    assert pool.get_swa_key_layout() is NVFP4_KV_LAYOUT
    for layer, page_size in ((1, 64), (2, 2)):
        assert pool.get_extra_key_page_size(layer) == page_size
        assert pool.get_extra_key_bytes_per_token(layer) == 384
        assert pool.get_extra_key_layout(layer) is NVFP4_KV_LAYOUT
        assert pool.get_extra_key_buffer(layer).dtype == torch.uint8
    assert pool.get_swa_key_buffer_radix(0).dtype == torch.uint8
    assert pool.get_swa_raw_buffer(2) is pool.swa_kv_pool.kv_buffer[2]


@pytest.mark.parametrize("is_draft_worker", [False, True])
def test_one_line_says_what_serves(device, caplog, is_draft_worker):
    ratios = (0,) if is_draft_worker else (0, 4, 128)
    with caplog.at_level("INFO", logger=token_to_kv_pool.logger.name):
        build_pool(device, ratios, num_pages=3, is_draft_worker=is_draft_worker)
    (record,) = [one for one in caplog.records if one.levelname == "INFO"]
    line = record.getMessage()
    assert line.startswith("DeepSeek-V4 KV cache in NVFP4: 384 bytes a token, ")
    for said in (
        f"{4 * PAGE_SIZE} tokens, {3 * PAGE_SIZE} in the window pool",
        f"worker={'draft' if is_draft_worker else 'target'}",
        "kernel=",
        "store=fused",
        "scale_rule=amax6",
        "sglang 0.5.23",
        *(f"{name} {version}" for name, version in versions().items() if version),
    ):
        assert said in line, said


def test_sglang_kernels_refuse_the_layout():
    from sglang.kernels.ops.attention.dsv4.kv_layout import KVLayout

    with pytest.raises(ValueError):
        KVLayout.parse(NVFP4_KV_LAYOUT)


def test_hicache_moves_whole_pages_only(pool):
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler

    # The token-granular copy hardcodes how FP8 splits a row.
    for sub_pool in (pool.swa_kv_pool, pool.c4_kv_pool, pool.c128_kv_pool):
        assert hybrid_pool_assembler._dsv4_page_aligned_only(sub_pool)


def test_pd_peers_see_the_format(device, pool):
    from sglang.srt.disaggregation.utils import get_pd_kv_layout

    assert get_pd_kv_layout(pool) == "nvfp4,c4:nvfp4,c128:nvfp4"
    assert build_stock_pool(device).pd_kv_layout() != pool.pd_kv_layout()


def test_pd_buffers_are_whole_logical_pages(pool):
    _, lengths, item_lengths = pool.get_state_buf_infos()
    assert item_lengths[:3] == [PAGE_SIZE * 384] * 3
    assert lengths[0] == pool.swa_kv_pool.kv_buffer[0].numel()
    _, _, item_lengths = pool.get_contiguous_buf_infos()
    assert item_lengths[0] == 64 * 384 and item_lengths[-1] == 2 * 384


def test_draft_pool_is_nvfp4(device):
    draft = build_pool(device, compression_ratios=(0,), is_draft_worker=True)
    assert draft.swa_kv_pool.kv_buffer[0].shape[1] == PAGE_SIZE * 384
    assert draft.pd_kv_layout() == "nvfp4"


def test_pipeline_stage_counts_its_own_layers(device):
    stage = build_pool(
        device, compression_ratios=(0, 4, 128, 4), start_layer=2, end_layer=4
    )
    assert len(stage.swa_kv_pool.kv_buffer) == 2
    rows = random_rows(torch.Generator().manual_seed(0), 2, device)
    slots = torch.tensor([5, 9], device=device)
    stage.set_swa_key_buffer_radix_fused(3, slots.int(), rows)
    stage.set_extra_key_buffer_fused(3, slots, rows)
    assert stage.swa_kv_pool.kv_buffer[1].any()
    assert not stage.swa_kv_pool.kv_buffer[0].any()
    assert stage.c4_kv_pool.kv_buffer[0].any()
    assert stage.pd_kv_layout() == "nvfp4,c4:nvfp4,c128:nvfp4"


def test_direct_swa_layout_is_not_needed_and_ignored(device, monkeypatch):
    monkeypatch.setenv("SGLANG_OPT_SM120_DIRECT_SWA_KV", "1")
    pool = build_pool(device)
    # HiCache refuses 64-token rows; NVFP4 regroups 256-token ones without a copy.
    assert pool.swa_kv_pool.page_size == pool.swa_page_size == PAGE_SIZE


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_window_setter_stores_finished_rows(device, pool, generator, layer):
    rows = random_rows(generator, 20, device)
    slots = torch.randperm(3 * PAGE_SIZE, generator=generator)[:20].int().to(device)
    slots[4] = -1
    pool.set_swa_key_buffer_radix_fused(layer, slots, rows)
    expected = torch.zeros_like(pool.swa_kv_pool.kernel_view(layer))
    quantize_append(rows, slots, expected)
    assert torch.equal(pool.swa_kv_pool.kernel_view(layer), expected)
    others = [index for index in range(3) if index != layer]
    assert not any(pool.swa_kv_pool.kv_buffer[index].any() for index in others)


@pytest.mark.parametrize(("layer", "name"), [(1, "c4_kv_pool"), (2, "c128_kv_pool")])
def test_extra_setter_stores_finished_rows(device, pool, generator, layer, name):
    sub_pool = getattr(pool, name)
    num_slots = sub_pool.kernel_view(0).shape[0] * sub_pool.kernel_view(0).shape[1]
    count = min(6, num_slots)
    rows = random_rows(generator, count, device)
    slots = torch.randperm(num_slots, generator=generator)[:count].to(device)
    pool.set_extra_key_buffer_fused(layer, slots, rows)
    read = dequantize(sub_pool.kernel_view(0), slots)
    assert torch.equal(read[:, 448:], rows[:, 448:])
    error = (read.float() - rows.float()).norm() / rows.float().norm()
    assert error < 0.12


def test_extra_setter_takes_no_unrotated_rows(device, pool, generator):
    with pytest.raises(AssertionError):
        pool.set_extra_key_buffer_fused(
            1,
            torch.tensor([0], device=device),
            random_rows(generator, 1, device),
            freqs_cis=torch.ones(1, 32, dtype=torch.complex64, device=device),
        )


@pytest.mark.parametrize(
    "write",
    [
        lambda pool, loc, pack: pool.set_swa_key_buffer(0, loc, pack),
        lambda pool, loc, pack: pool.set_swa_key_buffer_radix(0, loc, pack),
        lambda pool, loc, pack: pool.set_extra_key_buffer(1, loc, pack),
        lambda pool, loc, pack: pool.set_extra_key_buffer(2, loc, pack),
        lambda pool, loc, pack: pool.swa_kv_pool.set_key_buffer(0, loc, pack),
        lambda pool, loc, pack: pool.set_unified_key_buffer_radix_fused_norm_rope(
            0, loc, pack, None, 1e-6, None, None
        ),
    ],
)
def test_packed_fp8_setters_assert_before_writing(device, pool, generator, write):
    from sglang_dsv4_nvfp4.cli.arms import pack_fp8

    pack = pack_fp8(random_rows(generator, 1, device))
    with pytest.raises(AssertionError):
        write(pool, torch.tensor([3], device=device, dtype=torch.int32), pack)
    for sub_pool in (pool.swa_kv_pool, pool.c4_kv_pool, pool.c128_kv_pool):
        assert not any(buffer.any() for buffer in sub_pool.kv_buffer)


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"enable_hisparse": True}, "--enable-hisparse"),
        ({"kv_layout": "v41"}, "v41 KV layout"),
        ({"compression_ratios": (0, 1)}, "ratio 1 or 2"),
        ({"compression_ratios": (2, 4)}, "ratio 1 or 2"),
        ({"dtype": torch.bfloat16}, "kv_cache_dtype"),
    ],
)
def test_pools_refuse_by_name(device, kwargs, named):
    with pytest.raises(ValueError, match=named):
        build_pool(device, **kwargs)


@pytest.mark.parametrize(
    ("server_args", "named"),
    [
        ({"dsv4_attn_backend": "trtllm"}, "--dsv4-attn-backend trtllm"),
        ({"hicache_storage_backend": "hf3fs"}, "--hicache-storage-backend hf3fs"),
    ],
)
def test_pools_refuse_their_servers_options(device, server_args, named):
    """Some ways to start a server never check its options with the plugin loaded."""
    from sglang.srt.runtime_context import get_context

    with (
        get_context().override_server_args(device=device, **server_args),
        pytest.raises(ValueError, match=named),
    ):
        build_pool(device)
