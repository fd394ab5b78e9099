"""Triton kernels. Nothing in here imports SGLang, and no other folder has kernels.

In-tree these join ``sglang/kernels/ops/kvcache/`` (stores).
"""
