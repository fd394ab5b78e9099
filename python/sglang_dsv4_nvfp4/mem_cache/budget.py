"""What NVFP4 pages cost in SGLang's memory budget.

In-tree: one branch of ``DSV4PoolConfigurator._get_paged_kv_bytes_per_token`` in
``sglang/srt/model_executor/pool_configurator.py``. Everything else that the
configurator counts (indexer keys, compressor state, speculative inflation) is left
to it.
"""

from __future__ import annotations

from sglang_dsv4_nvfp4.layout import BYTES_PER_TOKEN


def paged_kv_bytes_per_token() -> float:
    """Bytes of one latent slot, for any compress ratio: no page is padded."""
    return float(BYTES_PER_TOKEN)
