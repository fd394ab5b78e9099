"""Writing latents into NVFP4 pages: window rows and compressed rows.

Staged: SGLang's own kernels norm and rotate the rows into BF16, then one append
quantizes them. In-tree this joins ``sglang/kernels/ops/kvcache/``.
"""
