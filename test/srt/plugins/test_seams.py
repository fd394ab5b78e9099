"""The seam table against the installed SGLang."""

import pytest

from sglang_dsv4_nvfp4 import seams


def test_every_seam_fits(device):
    assert seams.problems() == {seam.target: None for seam in seams.SEAMS}


def test_every_seam_is_installed_and_the_stock_object_is_kept(device):
    from sglang_dsv4_nvfp4 import signatures

    seams.require_installed()
    for seam in seams.SEAMS:
        assert signatures.resolve(seam.target) is not seams.stock(seam.target)


def test_importers_see_the_nvfp4_pool(device):
    from sglang.srt.mem_cache import deepseek_v4_memory_pool, kv_cache_configurator

    from sglang_dsv4_nvfp4.mem_cache.token_to_kv_pool import (
        DeepSeekV4NVFP4TokenToKVPool,
    )

    for module in (deepseek_v4_memory_pool, kv_cache_configurator):
        assert module.DeepSeekV4TokenToKVPool is DeepSeekV4NVFP4TokenToKVPool


@pytest.mark.parametrize("seam", seams.SEAMS, ids=lambda seam: seam.hook)
def test_a_hook_that_did_not_take_is_named(device, monkeypatch, seam):
    from sglang_dsv4_nvfp4 import signatures

    owner, name = seam.target.rsplit(".", 1)
    monkeypatch.setattr(signatures.resolve(owner), name, seams.stock(seam.target))
    with pytest.raises(RuntimeError, match=name):
        seams.require_installed()


def test_pools_refuse_to_be_built_with_a_seam_missing(device, monkeypatch):
    from sglang.kernels.ops.attention import flash_mla_sm120
    from support.pools import build_pool

    target = f"{flash_mla_sm120.__name__}.flash_mla_with_kvcache_sm120"
    monkeypatch.setattr(
        flash_mla_sm120, "flash_mla_with_kvcache_sm120", seams.stock(target)
    )
    with pytest.raises(RuntimeError, match="flash_mla_with_kvcache_sm120"):
        build_pool(device)
