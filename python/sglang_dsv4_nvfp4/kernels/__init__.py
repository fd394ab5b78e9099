"""Triton kernels. Nothing in here imports SGLang, and no other folder has kernels.

Not in-tree: each kernel lies beside what launches it, as SGLang's do.
"""
