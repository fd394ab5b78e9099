"""The pools that hold NVFP4 pages, what they cost, and what SGLang is told of them.

In-tree: ``sglang/srt/mem_cache/dsv4_nvfp4/__init__.py``.
"""
