"""Every store test runs over both stores: the fused kernels interpreted on a CPU."""

import pytest


@pytest.fixture(autouse=True, params=["staged", "fused"])
def stores(request, device, monkeypatch):
    """Which module writes, whatever device the pools are on."""
    import importlib

    from sglang_dsv4_nvfp4.store import dispatch

    module = importlib.import_module(f"sglang_dsv4_nvfp4.store.{request.param}")
    monkeypatch.setattr(dispatch, "_stores", lambda device: module)
    return request.param
