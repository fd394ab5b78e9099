"""The pools that hold NVFP4 pages, what they cost, and what SGLang is told of them.

In-tree the pools join ``sglang/srt/mem_cache/deepseek_v4_memory_pool.py``.
"""
