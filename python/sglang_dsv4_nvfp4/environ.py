"""This feature's environment variables, declared as SGLang declares its own.

It stands in for ``sglang/srt/environ.py``, whose import brings torch: the plugin is
asked in every SGLang process, and almost always the answer is that nobody wants it.

Not in-tree: the fields of ``Envs`` join those of SGLang's.
"""

from __future__ import annotations

import os


class EnvStr:
    """A variable whose value is text; unset, it has the default's."""

    def __init__(self, default: str) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def get(self) -> str:
        return os.environ.get(self.name, self.default)


class _SGLangsOwn:
    # SM120 FlashMLA decode backend: the NVFP4 branch follows it.
    SGLANG_SM120_FLASHMLA_BACKEND = EnvStr("flashinfer")


class Envs(_SGLangsOwn):
    # Format of DeepSeek-V4's KV cache on SM120/SM121: "fp8" or "nvfp4".
    SGLANG_SM120_KV_CACHE_FORMAT = EnvStr("fp8")
    # What reads NVFP4 pages: "auto", "sparse", "cake", "triton" or "torch". Unset,
    # SGLANG_SM120_FLASHMLA_BACKEND decides, whose "flashinfer" means "auto".
    SGLANG_SM120_NVFP4_KERNEL = EnvStr("")
    # File of measured kernels that the NVFP4 planner goes by; unset, the usual place.
    SGLANG_SM120_NVFP4_PROFILE = EnvStr("")
    # For debugging: check NVFP4 attention's slots against the pool ("1"). Synchronizes.
    SGLANG_SM120_NVFP4_CHECK_INDICES = EnvStr("0")
    # How rows get into NVFP4 pages: "fused", or "staged" through BF16.
    SGLANG_SM120_NVFP4_STORE = EnvStr("fused")
    # How 16 values get their NVFP4 scale: "amax6" or "4over6".
    SGLANG_SM120_NVFP4_SCALE_RULE = EnvStr("amax6")


envs = Envs()
