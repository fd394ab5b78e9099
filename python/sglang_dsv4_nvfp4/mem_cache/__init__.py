"""The pools that hold NVFP4 pages, and what HiCache and the KV canary know of them.

In-tree: ``sglang/srt/mem_cache/dsv4_nvfp4/__init__.py``.
"""
