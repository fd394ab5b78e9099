"""The entry point that SGLang's ``load_plugins()`` calls in each of its processes.

In-tree this module disappears: its decision becomes an ``if`` at each seam.
"""

from __future__ import annotations

import logging

from sglang_dsv4_nvfp4.config import KVCacheFormat, kv_cache_format

logger = logging.getLogger(__name__)


def register() -> None:
    """Hook SGLang where the environment asks for NVFP4; else do nothing at all.

    Raises:
        SystemExit: NVFP4 is asked for and cannot be served. Any other exception
            would be logged and swallowed by ``load_plugins()``, and the server
            would come up in FP8.
    """
    try:
        if kv_cache_format() is not KVCacheFormat.NVFP4:
            return
        from sglang_dsv4_nvfp4 import platform, seams

        platform.require_nvfp4_support()
        seams.register()
    except Exception as error:
        logger.debug("NVFP4 cannot be served", exc_info=True)
        message = " ".join(str(error).split()) or type(error).__name__
        raise SystemExit(f"sglang-dsv4-nvfp4: {message}") from None
