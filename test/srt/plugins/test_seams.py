"""The seam table against the installed SGLang."""

import pytest
from support.record_surface import record

from sglang_dsv4_nvfp4 import seams, surface, unsupported

pytestmark = pytest.mark.stock_sglang

HOOKED = [seam for seam in seams.SEAMS if seam.kind.is_hook]


def test_every_seam_fits(device):
    assert seams.problems() == {seam.target: None for seam in seams.SEAMS}


def test_the_record_is_what_the_command_makes(device):
    """An override that is new in our classes has to be recorded as well."""
    assert surface.recorded() == record()


@pytest.mark.parametrize("seam", seams.SEAMS, ids=lambda seam: seam.hook)
def test_every_writer_is_overridden_or_left_on_purpose(device, seam):
    """What a new SGLang writes with would be recorded without a look at it otherwise."""
    writers = surface.writers(seams.stock(seam.target))
    assert writers - seams.overridden(seam) == set(seam.leaves)


def test_a_target_that_was_not_recorded_is_a_problem(device):
    assert "is not in sglang_surface.json" in surface.problem("sglang.new", print)


def test_every_seam_is_installed_and_the_stock_object_is_kept(device):
    from sglang_dsv4_nvfp4 import signatures

    seams.require_installed()
    for seam in HOOKED:
        assert signatures.resolve(seam.target) is not seams.stock(seam.target)


def test_importers_see_the_nvfp4_pool(device):
    from sglang.srt.mem_cache import deepseek_v4_memory_pool, kv_cache_configurator

    from sglang_dsv4_nvfp4.mem_cache.token_to_kv_pool import (
        DeepSeekV4NVFP4TokenToKVPool,
    )

    for module in (deepseek_v4_memory_pool, kv_cache_configurator):
        assert module.DeepSeekV4TokenToKVPool is DeepSeekV4NVFP4TokenToKVPool


@pytest.mark.parametrize("seam", HOOKED, ids=lambda seam: seam.hook)
def test_a_hook_that_did_not_take_is_named(device, monkeypatch, seam):
    from sglang_dsv4_nvfp4 import signatures

    owner, name = seam.target.rsplit(".", 1)
    monkeypatch.setattr(signatures.resolve(owner), name, seams.stock(seam.target))
    with pytest.raises(RuntimeError, match=name):
        seams.require_installed()


def test_another_plugins_replacement_is_not_ours(device, monkeypatch):
    """A class that someone else put over ours would read and write FP8."""
    from sglang.srt.mem_cache import deepseek_v4_memory_pool

    theirs = type("TheirPool", (seams.stock(seams.TOKEN_TO_KV_POOL),), {})
    monkeypatch.setattr(deepseek_v4_memory_pool, "DeepSeekV4TokenToKVPool", theirs)
    with pytest.raises(RuntimeError, match="DeepSeekV4TokenToKVPool"):
        seams.require_installed()


def test_another_plugins_wrapper_around_ours_is_fine(device, monkeypatch):
    from sglang.kernels.ops.attention import flash_mla_sm120
    from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

    wrapped = _wrap_fn(
        flash_mla_sm120.flash_mla_with_kvcache_sm120,
        lambda original, **kwargs: original(**kwargs),
        HookType.AROUND,
    )
    monkeypatch.setattr(flash_mla_sm120, "flash_mla_with_kvcache_sm120", wrapped)
    seams.require_installed()


def test_pools_refuse_to_be_built_with_a_seam_missing(device, monkeypatch):
    from sglang.kernels.ops.attention import flash_mla_sm120
    from support.pools import build_pool

    monkeypatch.setattr(
        flash_mla_sm120, "flash_mla_with_kvcache_sm120", seams.stock(seams.ATTENTION)
    )
    with pytest.raises(RuntimeError, match="flash_mla_with_kvcache_sm120"):
        build_pool(device)


@pytest.mark.parametrize("version", ["0.5.99", "0.5.23.post1", None])
def test_another_sglang_is_named_whatever_its_signatures(monkeypatch, version):
    monkeypatch.setattr(seams, "distribution_version", lambda name: version)
    with pytest.raises(RuntimeError, match=f"sglang {version} is installed"):
        seams.register()


def test_a_local_build_of_the_same_sglang_fits(monkeypatch):
    monkeypatch.setattr(seams, "distribution_version", lambda name: "0.5.23+cu130")
    assert seams.version_problem() is None


def test_this_packages_version_is_told_beside_sglangs():
    from sglang_dsv4_nvfp4 import machine

    assert list(machine.versions())[:2] == ["sglang-dsv4-nvfp4", "sglang"]


@pytest.fixture
def check_startup():
    """What is hooked after SGLang's own look at the server's options."""
    (seam,) = (seam for seam in seams.SEAMS if seam.kind is seams.Kind.AFTER)
    return seams._hook(seam)


def test_a_refused_option_leaves_in_one_line(device, monkeypatch, check_startup):
    def refuse(server_args):
        raise ValueError("no such option")

    monkeypatch.setattr(unsupported, "check_nvfp4_server_args", refuse)
    with pytest.raises(SystemExit, match="sglang-dsv4-nvfp4: no such option"):
        check_startup(None, "server args", "DeepseekV4ForCausalLM")


def test_startup_checks_the_hooks_and_then_the_options(
    device, monkeypatch, check_startup
):
    calls = []
    monkeypatch.setattr(seams, "require_installed", lambda: calls.append("hooks"))
    monkeypatch.setattr(unsupported, "check_nvfp4_server_args", calls.append)
    assert check_startup(None, "server args", "DeepseekV4ForCausalLM") is None
    assert calls == ["hooks", "server args"]


def test_the_canary_knows_our_pool(device):
    from sglang.srt.kv_canary.pool_patcher import api

    from sglang_dsv4_nvfp4.mem_cache.canary import attach_dsv4_nvfp4

    assert api._POOL_ATTACHERS[seams.replacement()] is attach_dsv4_nvfp4
