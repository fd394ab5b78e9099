"""The entry point that SGLang's ``load_plugins()`` calls in each of its processes.

Not in-tree: its decision becomes an ``if`` at each seam.
"""

from __future__ import annotations

import logging

from sglang_dsv4_nvfp4.intree import aliases

logger = logging.getLogger(__name__)


def register() -> None:
    """Hook SGLang where the environment asks for NVFP4; else do nothing at all.

    Nor is there anything to do where SGLang has this feature in its own tree.

    Raises:
        SystemExit: NVFP4 is asked for and cannot be served. Any other exception
            would be logged and swallowed by ``load_plugins()``, and the server
            would come up in FP8.
    """
    if aliases.tree() is not None:
        return
    try:
        from sglang_dsv4_nvfp4.config import KVCacheFormat, kv_cache_format

        if kv_cache_format() is KVCacheFormat.NVFP4:
            _hook_sglang()
    except Exception as error:
        logger.debug("NVFP4 cannot be served", exc_info=True)
        message = " ".join(str(error).split()) or type(error).__name__
        raise SystemExit(f"sglang-dsv4-nvfp4: {message}") from None


def _hook_sglang() -> None:
    """
    Raises:
        ValueError: the device is not served, or a variable asks for what is not there.
        RuntimeError: the installed FlashInfer or SGLang does not fit.
    """
    from sglang_dsv4_nvfp4 import config, flashinfer_contract, kv_gate, seams

    # Refuses another device.
    kv_gate.is_nvfp4_kv_cache()
    config.check_variables()
    problems = flashinfer_contract.flashinfer_problems()
    if problems:
        raise RuntimeError("; ".join(problems))
    seams.register()
