"""Writing latents into NVFP4 pages.

``dispatch`` decides between ``fused`` (one Triton kernel a store) and ``staged``
(SGLang's own kernels into BF16 rows, then one append: the reference, and for A/B).

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/__init__.py``.
"""
