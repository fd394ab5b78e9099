"""Reading NVFP4 pages: dispatch, planner, and the backends.

In-tree this joins ``sglang/kernels/ops/attention/`` beside ``flash_mla_sm120.py``.
"""
