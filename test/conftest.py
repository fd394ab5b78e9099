"""What every test shares: SGLang in this process, with this feature."""

import os

import pytest
import torch

# Triton reads this when a kernel is defined: before anything imports one.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from support.in_tree import NEEDS_STOCK

from sglang_dsv4_nvfp4.cli.sandbox import hooked_sglang
from sglang_dsv4_nvfp4.intree import aliases


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.get_closest_marker("stock_sglang") and aliases.tree():
        pytest.skip(NEEDS_STOCK)


@pytest.fixture(scope="session")
def device() -> str:
    """SGLang under NVFP4 for the whole session; the device its pools live on.

    It has it from the plugin, or in its own tree. Tests of what happens without the plugin
    run in processes of their own.
    """
    with hooked_sglang(max_running_requests=64, chunked_prefill_size=8192) as device:
        yield device


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
