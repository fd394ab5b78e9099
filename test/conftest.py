"""What every test shares: SGLang in this process, hooked as the plugin hooks it."""

import os

import pytest
import torch

# Triton reads this when a kernel is defined: before anything imports one.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from sglang_dsv4_nvfp4.cli.sandbox import hooked_sglang


@pytest.fixture(scope="session")
def device() -> str:
    """SGLang under NVFP4 for the whole session; the device its pools live on.

    Tests of what happens without the plugin run in processes of their own.
    """
    with hooked_sglang(max_running_requests=64, chunked_prefill_size=8192) as device:
        yield device


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
