"""The comparison at startup: passes where the kernels are right, and only there."""

import pytest
import torch

from sglang_dsv4_nvfp4.store import dispatch, fused, self_check, staged


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    monkeypatch.setattr(self_check, "_NUM_ROWS", 64)
    check = self_check.check_fused_append
    check.cache_clear()
    yield
    check.cache_clear()


def test_the_kernels_pass(device):
    self_check.check_fused_append(torch.device(device))


def test_one_wrong_byte_is_refused_by_name(device, monkeypatch):
    append = fused.append

    def wrong(rows, slots, cache, **kwargs):
        append(rows, slots, cache, **kwargs)
        cache[0, 3, 7] ^= 1

    monkeypatch.setattr(fused, "append", wrong)
    with pytest.raises(RuntimeError, match="1 of .*SGLANG_SM120_NVFP4_STORE=staged"):
        self_check.check_fused_append(torch.device(device))


@pytest.mark.parametrize(("stores", "checked"), [("fused", True), ("staged", False)])
def test_pools_check_the_stores_they_will_use(device, monkeypatch, stores, checked):
    from support.pools import build_pool

    calls = []
    module = {"fused": fused, "staged": staged}[stores]
    monkeypatch.setattr(dispatch, "_stores", lambda device: module)
    monkeypatch.setattr(self_check, "check_fused_append", calls.append)
    build_pool(device)
    assert bool(calls) is checked


def test_check_rows_reach_both_ends_of_the_scales():
    from sglang_dsv4_nvfp4.quantize import quantize_rows

    _, scales = quantize_rows(self_check.check_rows())
    codes = scales[:, :28]
    assert codes.max() == 0x7E and codes.min() < 8
