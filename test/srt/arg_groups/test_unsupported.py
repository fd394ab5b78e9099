"""Server options that NVFP4 cannot serve, each refused by name."""

import json
import logging
import re
from types import SimpleNamespace

import pytest
from support.models import write_v4_flash_config
from support.processes import run_python

from sglang_dsv4_nvfp4 import unsupported

_DEFAULTS = dict(
    enable_hisparse=False,
    dsv4_attn_backend="flashmla",
    kv_cache_dtype="fp8_e4m3",
    enable_encoder_swa_bounded_replay=False,
    enable_prefill_cp=False,
    tp_size=4,
    attn_cp_size=1,
    attn_dp_size=4,
    use_ray=False,
    hicache_storage_backend=None,
    speculative_algorithm=None,
    dcp_size=1,
    enable_kv_cache_sharding=False,
    enable_lmcache=False,
    enable_flexkv=False,
    radix_cache_backend=None,
    enable_unified_cache_external_linker=False,
    disaggregation_mode="null",
    disaggregation_enable_kv_checksum=False,
    disaggregation_decode_enable_offload_kvcache=False,
    speculative_draft_kv_cache_dtype=None,
)


@pytest.fixture
def check(device, monkeypatch):
    """``check(model=..., **server_args)`` through SGLang's own views, stubbed."""
    from sglang.srt.arg_groups import overrides

    def run(model=None, **server_args):
        config = SimpleNamespace(
            model_type="deepseek_v4",
            compress_ratios=[0, 4, 128],
            num_attention_heads=64,
        )
        vars(config).update(model or {})
        monkeypatch.setattr(
            overrides,
            "resolving_view",
            lambda args: SimpleNamespace(**{**_DEFAULTS, **server_args}),
        )
        monkeypatch.setattr(
            overrides, "model_config_of", lambda args: SimpleNamespace(hf_config=config)
        )
        unsupported.check_nvfp4_server_args(object())

    return run


def test_the_defaults_are_served(check, caplog):
    with caplog.at_level(logging.WARNING):
        check()
    assert not caplog.records


@pytest.mark.parametrize(
    ("server_args", "model", "named"),
    [
        ({"enable_hisparse": True}, {}, "--enable-hisparse"),
        ({"dsv4_attn_backend": "trtllm"}, {}, "--dsv4-attn-backend trtllm"),
        ({"dsv4_attn_backend": "flashmla_mega"}, {}, "flashmla_mega"),
        ({"kv_cache_dtype": "bfloat16"}, {}, "--kv-cache-dtype bfloat16"),
        (
            {"enable_encoder_swa_bounded_replay": True},
            {},
            "--enable-encoder-swa-bounded-replay",
        ),
        ({"use_ray": True}, {}, "--use-ray"),
        ({"hicache_storage_backend": "hf3fs"}, {}, "--hicache-storage-backend hf3fs"),
        ({"dcp_size": 2}, {}, "--dcp-size 2"),
        ({"enable_kv_cache_sharding": True}, {}, "--enable-kv-cache-sharding"),
        ({"enable_lmcache": True}, {}, "--enable-lmcache"),
        ({"enable_flexkv": True}, {}, "--enable-flexkv"),
        ({"radix_cache_backend": "flexkv"}, {}, "--radix-cache-backend flexkv"),
        (
            {"enable_unified_cache_external_linker": True},
            {},
            "--enable-unified-cache-external-linker",
        ),
        (
            {
                "disaggregation_enable_kv_checksum": True,
                "disaggregation_mode": "prefill",
            },
            {},
            "--disaggregation-enable-kv-checksum",
        ),
        (
            {"disaggregation_decode_enable_offload_kvcache": True},
            {},
            "--disaggregation-decode-enable-offload-kvcache",
        ),
        (
            {"speculative_draft_kv_cache_dtype": "bfloat16"},
            {},
            "--speculative-draft-kv-cache-dtype bfloat16",
        ),
        (
            {"radix_cache_backend": "a_plugins_own"},
            {},
            "--radix-cache-backend a_plugins_own",
        ),
        ({}, {"model_type": "deepseek_v41"}, "V4.1"),
        ({}, {"compress_ratios": [0, 1, 4]}, "ratio 1 or 2"),
        ({}, {"compress_ratios": [2]}, "ratio 1 or 2"),
    ],
)
def test_refused_by_name(check, server_args, model, named):
    with pytest.raises(ValueError, match="SGLANG_SM120_KV_CACHE_FORMAT") as refusal:
        check(model, **server_args)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SGLANG_DSV4_KV_LAYOUT", "v41"),
        ("SGLANG_DSV4_COMPRESSED_KV_LAYOUT", "fp4"),
    ],
)
def test_kv_layout_variables_are_refused_by_name(check, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable}={value}"):
        check()


@pytest.mark.parametrize(
    "variable",
    ["SGLANG_SM120_NVFP4_STORE", "SGLANG_SM120_NVFP4_SCALE_RULE"],
)
def test_an_unknown_value_of_a_variable_is_refused(check, monkeypatch, variable):
    monkeypatch.setenv(variable, "fastest")
    with pytest.raises(ValueError, match=f"{variable}='fastest': expected "):
        check()


def test_unified_kv_is_refused(check, monkeypatch):
    from sglang.srt.layers.attention.dsv4 import unified_kv_gate

    monkeypatch.setattr(unified_kv_gate, "is_unified_kv_triton", lambda: True)
    with pytest.raises(ValueError, match="unified KV"):
        check()


def test_attention_tp_is_served_with_one_warning(check, caplog):
    with caplog.at_level(logging.WARNING):
        check(attn_dp_size=1)
    (record,) = caplog.records
    assert "attention TP 4: 16 heads a rank" in record.getMessage()


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("auto", "prefill by kernel cake.*past 1024 candidates.*sparse, slower.*tune"),
        ("sparse", "read by kernel sparse, slower.*tune.*SGLANG_SM120_NVFP4_KERNEL"),
        ("triton", "read by kernel triton"),
    ],
)
def test_attention_tp_says_what_reads_and_how_fast_it_is_known_to_be(
    check, caplog, monkeypatch, kernel, said
):
    monkeypatch.setenv("SGLANG_SM120_NVFP4_KERNEL", kernel)
    with caplog.at_level(logging.WARNING):
        check(attn_dp_size=1)
    (record,) = caplog.records
    assert re.search(said, record.getMessage())


def test_prefill_cp_takes_the_tp_group_without_a_warning(check, caplog):
    with caplog.at_level(logging.WARNING):
        check(attn_dp_size=1, enable_prefill_cp=True)
    assert not caplog.records


@pytest.mark.parametrize(
    ("kernel", "served"),
    [("torch", True), ("auto", True), ("cake", True), ("sparse", False)],
)
def test_dspark_needs_a_kernel_for_its_windows(check, monkeypatch, kernel, served):
    monkeypatch.setenv("SGLANG_SM120_NVFP4_KERNEL", kernel)
    if served:
        check(speculative_algorithm="DSPARK")
        return
    with pytest.raises(ValueError, match="DSPARK with the sparse kernel"):
        check(speculative_algorithm="DSPARK")


@pytest.mark.parametrize(
    "server_args",
    [
        {"speculative_algorithm": "EAGLE"},
        {"hicache_storage_backend": "file"},
        {"hicache_storage_backend": "mooncake"},
        {"hicache_storage_backend": "nixl"},
        {"speculative_draft_kv_cache_dtype": "fp8_e4m3"},
    ],
)
def test_served(check, server_args):
    check(**server_args)


_RESOLVE = """
import json, sys
from sglang.srt.runtime_context import override_platform
override_platform(is_sm120=True, is_cuda=True).install()
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import ServerArgs
model, cases = json.loads(sys.stdin.read())
outcomes = []
for case in cases:
    try:
        ServerArgs(model_path=model, device="cuda", **case).resolve_once()
        outcomes.append("served")
    except (SystemExit, ValueError, AssertionError) as refusal:
        outcomes.append(str(refusal))
print(json.dumps(outcomes))
"""


def test_sglangs_own_server_args_are_refused_in_one_line(tmp_path):
    """The whole way: plugin, seam, SGLang's resolution of a V4-Flash config."""
    cases = {
        "served": {},
        "--enable-hisparse": {"enable_hisparse": True, "disable_radix_cache": True},
        "--kv-cache-dtype bfloat16": {"kv_cache_dtype": "bfloat16"},
        "--use-ray": {"use_ray": True},
        "--hicache-storage-backend hf3fs": {
            "enable_hierarchical_cache": True,
            "hicache_storage_backend": "hf3fs",
        },
        "--dcp-size 2": {"dcp_size": 2, "tp_size": 2},
        "--enable-lmcache": {"enable_lmcache": True},
        "--enable-flexkv": {"enable_flexkv": True},
        "--radix-cache-backend flexkv": {"radix_cache_backend": "flexkv"},
        "--speculative-draft-kv-cache-dtype bfloat16": {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 2,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 3,
            "speculative_draft_kv_cache_dtype": "bfloat16",
        },
        "--disaggregation-decode-enable-offload-kvcache": {
            "disaggregation_mode": "decode",
            "disaggregation_decode_enable_offload_kvcache": True,
            "hicache_storage_backend": "file",
        },
        "--enable-unified-cache-external-linker": {
            "enable_unified_cache_external_linker": True
        },
        "--disaggregation-enable-kv-checksum": {
            "disaggregation_mode": "decode",
            "disaggregation_enable_kv_checksum": True,
        },
    }
    # SGLang itself refuses what would move accepted slots, or lay pages out otherwise.
    theirs = {
        "topk == 1": {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 2,
            "speculative_eagle_topk": 2,
            "speculative_num_draft_tokens": 4,
        },
        "allowed set": {"enable_unified_memory": True},
    }
    write_v4_flash_config(tmp_path)
    result = run_python(
        "-c",
        _RESOLVE,
        stdin=json.dumps([str(tmp_path), [*cases.values(), *theirs.values()]]),
        SGLANG_SM120_KV_CACHE_FORMAT="nvfp4",
    )
    assert result.returncode == 0, result.stderr[-2000:]
    outcomes = json.loads(result.stdout.splitlines()[-1])
    for named, outcome in zip([*cases, *theirs], outcomes, strict=True):
        assert named in outcome
        ours = "SGLANG_SM120_KV_CACHE_FORMAT=nvfp4" in outcome
        assert ours == (named != "served" and named not in theirs)
