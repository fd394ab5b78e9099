"""The pools that hold NVFP4 pages, and what they cost.

In-tree these classes join ``sglang/srt/mem_cache/deepseek_v4_memory_pool.py``.
"""
