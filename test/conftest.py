"""What every test shares: SGLang in this process, hooked as the plugin hooks it."""

import pytest
import torch

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
