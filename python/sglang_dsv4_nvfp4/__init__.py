"""NVFP4 sparse-MLA KV cache for DeepSeek-V4 in SGLang.

This module imports neither torch nor sglang, so that the plugin costs nothing
where it is not asked for.
"""

__version__ = "0.1.0"
