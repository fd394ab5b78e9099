"""One place decides which store writes."""

import pytest
import torch

from sglang_dsv4_nvfp4 import config
from sglang_dsv4_nvfp4.store import dispatch, fused, staged

STORE = "SGLANG_SM120_NVFP4_STORE"
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def stores():
    """Not the parametrized one of this folder: the real decision is the subject."""


@pytest.mark.parametrize(
    ("value", "device", "module"),
    [
        ("", CUDA, fused),
        ("fused", CUDA, fused),
        ("staged", CUDA, staged),
        # The kernels need a CUDA device.
        ("fused", CPU, staged),
        ("", CPU, staged),
    ],
    # In-tree the modules have other names.
    ids=["default", "fused", "staged", "fused on a CPU", "default on a CPU"],
)
def test_the_variable_and_the_device_decide(monkeypatch, value, device, module):
    monkeypatch.setenv(STORE, value)
    assert dispatch._stores(device) is module


@pytest.mark.parametrize(
    ("variable", "read", "choices"),
    [
        (STORE, config.store_mode, "fused or staged"),
        ("SGLANG_SM120_NVFP4_SCALE_RULE", config.scale_rule, "amax6 or 4over6"),
    ],
)
def test_unknown_values_are_named(monkeypatch, variable, read, choices):
    monkeypatch.setenv(variable, "other")
    with pytest.raises(ValueError, match=f"{variable}='other': expected {choices}"):
        read()


def test_the_staged_append_takes_flashinfer_for_its_rule_only(monkeypatch):
    """FlashInfer writes amax6; asked for 4over6, the reference quantizer must write."""
    written = []
    monkeypatch.setattr(staged, "flashinfer_writes", lambda device: True)
    monkeypatch.setattr(
        staged, "quantize_append", lambda *args: written.append(args[-1])
    )
    monkeypatch.setenv("SGLANG_SM120_NVFP4_SCALE_RULE", "4over6")
    rows, slots = torch.zeros(1, 512).bfloat16(), torch.zeros(1).int()
    staged.append(rows, slots, torch.zeros(1, 64, 384, dtype=torch.uint8))
    assert written == [config.ScaleRule.FOUR_OVER_SIX]
