"""Reading NVFP4 pages: dispatch, planner, and the backends.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/__init__.py``.
"""
