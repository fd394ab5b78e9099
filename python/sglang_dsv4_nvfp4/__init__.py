"""NVFP4 sparse-MLA KV cache for DeepSeek-V4 in SGLang.

This module imports neither torch nor sglang, so that the plugin costs nothing
where it is not asked for.
"""

from sglang_dsv4_nvfp4.intree import aliases

__version__ = "0.1.0"

aliases.install()
