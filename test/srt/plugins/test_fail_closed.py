"""What cannot be served ends the process, with one line and before the model."""

import sys
from pathlib import Path

import pytest
from support.processes import run_python

pytestmark = pytest.mark.stock_sglang

FORMAT = "SGLANG_SM120_KV_CACHE_FORMAT"

_REGISTER_ON_SM120 = """
from sglang.srt.runtime_context import override_platform
override_platform(is_sm120=True).install()
{sabotage}
from sglang.srt.plugins import load_plugins
load_plugins()
print("came up")
"""


def serve(**environment):
    """What a user types, with a model that nothing could find."""
    sglang = str(Path(sys.executable).with_name("sglang"))
    return run_python(sglang, "serve", "--model-path", "/no/such/model", **environment)


def assert_one_line_exit(result, *mentions):
    assert result.returncode != 0
    assert "came up" not in result.stdout
    lines = [
        line for line in result.stderr.splitlines() if "sglang-dsv4-nvfp4:" in line
    ]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for mention in mentions:
        assert mention in lines[0]


@pytest.mark.parametrize("value", ["nvfp4", " NVFP4 "])
def test_serve_without_sm120_exits(value):
    import torch

    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 12:
        pytest.skip("needs a machine without an SM120 GPU")
    result = serve(**{FORMAT: value})
    found = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA"
    assert_one_line_exit(result, "SM120", "SM121", found)
    assert "/no/such/model" not in result.stderr


def test_serve_with_an_unknown_format_exits():
    result = serve(**{FORMAT: "fp4"})
    assert_one_line_exit(result, FORMAT, "'fp4'", "fp8", "nvfp4")


@pytest.mark.parametrize(
    ("variable", "known"),
    [
        ("SGLANG_SM120_FLASHMLA_BACKEND", "flashinfer or triton or torch"),
        ("SGLANG_SM120_NVFP4_KERNEL", "auto or sparse or cake or triton or torch"),
        ("SGLANG_SM120_NVFP4_CHECK_INDICES", "0 or 1"),
    ],
)
def test_an_unknown_attention_setting_exits(variable, known):
    result = run_python(
        "-c",
        _REGISTER_ON_SM120.format(sabotage=""),
        **{FORMAT: "nvfp4", variable: "cutlass"},
    )
    assert_one_line_exit(result, variable, "cutlass", known)


@pytest.mark.parametrize(
    ("sabotage", "mentions"),
    [
        pytest.param(
            "import sglang.kernels.ops.attention.flash_mla_sm120 as m\n"
            "m.flash_mla_with_kvcache_sm120 = lambda q, k: None",
            ("flash_mla_with_kvcache_sm120", "(q, k)", "sglang==0.5.23"),
            id="another-signature",
        ),
        pytest.param(
            "import sglang.srt.mem_cache.deepseek_v4_memory_pool as m\n"
            "m.DeepSeekV4TokenToKVPool._make_kv_pool = lambda self, size: None",
            ("DeepSeekV4TokenToKVPool: _make_kv_pool takes (self, size)",),
            id="another-method",
        ),
        pytest.param(
            "import sglang.srt.model_executor.pool_configurator as m\n"
            "del m.DSV4PoolConfigurator",
            ("DSV4PoolConfigurator", "is not there"),
            id="missing-target",
        ),
        pytest.param(
            "import sglang.srt.mem_cache.deepseek_v4_memory_pool as m\n"
            "m.DeepSeekV4TokenToKVPool.set_swa_key_buffer_new = lambda self: None",
            ("unknown writers", "set_swa_key_buffer_new"),
            id="a-writer-we-do-not-know",
        ),
        pytest.param(
            "import flashinfer.mla as m\n"
            "m.nvfp4_quantize_append_sparse_mla_cache = lambda latent, slots: None",
            ("FlashInfer 0.7.2", "nvfp4_quantize_append_sparse_mla_cache"),
            id="another-flashinfer",
        ),
    ],
)
def test_a_misfit_exits(sabotage, mentions):
    result = run_python(
        "-c", _REGISTER_ON_SM120.format(sabotage=sabotage), **{FORMAT: "nvfp4"}
    )
    assert_one_line_exit(result, *mentions)


def test_the_same_process_comes_up_unsabotaged():
    result = run_python(
        "-c", _REGISTER_ON_SM120.format(sabotage=""), **{FORMAT: "nvfp4"}
    )
    assert result.returncode == 0, result.stderr
    assert "came up" in result.stdout


def test_stale_prebuilt_flashinfer_is_found(monkeypatch):
    import importlib.metadata

    from sglang_dsv4_nvfp4 import flashinfer_contract, machine

    class Stale:
        metadata = {"Name": "flashinfer-jit-cache"}
        version = "0.6.1+cu130"

    class Current(Stale):
        version = machine.distribution_version("flashinfer-python") + "+cu130"

    # FlashInfer is imported by this, and looks at its distributions as it is.
    assert flashinfer_contract.flashinfer_problems() == []
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [Current()])
    assert flashinfer_contract.flashinfer_problems() == []
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [Stale()])
    (problem,) = flashinfer_contract.flashinfer_problems()
    assert "0.6.1+cu130" in problem and "pip uninstall" in problem
