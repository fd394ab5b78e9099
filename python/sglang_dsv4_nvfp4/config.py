"""The environment variables this feature reads, parsed and validated once.

In-tree these become fields of ``sglang/srt/environ.py``. Nothing here imports
torch or sglang: the plugin asks :func:`kv_cache_format` in every SGLang process,
and almost always the answer is ``fp8``.
"""

from __future__ import annotations

import enum
import functools
import os
from typing import TypeVar

_Choice = TypeVar("_Choice", bound=enum.StrEnum)

KV_CACHE_FORMAT_ENV = "SGLANG_SM120_KV_CACHE_FORMAT"
# SGLang's own variable; the NVFP4 branch follows it.
FLASHMLA_BACKEND_ENV = "SGLANG_SM120_FLASHMLA_BACKEND"
KERNEL_ENV = "SGLANG_SM120_NVFP4_KERNEL"
PROFILE_ENV = "SGLANG_SM120_NVFP4_PROFILE"
CHECK_INDICES_ENV = "SGLANG_SM120_NVFP4_CHECK_INDICES"
STORE_MODE_ENV = "SGLANG_SM120_NVFP4_STORE"
SCALE_RULE_ENV = "SGLANG_SM120_NVFP4_SCALE_RULE"


class KVCacheFormat(enum.StrEnum):
    FP8 = "fp8"
    NVFP4 = "nvfp4"


class StoreMode(enum.StrEnum):
    FUSED = "fused"
    STAGED = "staged"


class ScaleRule(enum.StrEnum):
    AMAX6 = "amax6"
    FOUR_OVER_SIX = "4over6"


# With fewer heads a rank than this, FlashInfer's "sparse" prefill kernel was slower than
# reading FP8 (benchmark/original_patch).
FULL_HEADS = 64


class Kernel(enum.StrEnum):
    """What reads NVFP4 pages.

    SPARSE and CAKE are FlashInfer's two families of SM120 kernels, TRITON and TORCH this
    package's. AUTO takes what is measured, or known, to be fastest.
    """

    AUTO = "auto"
    SPARSE = "sparse"
    CAKE = "cake"
    TRITON = "triton"
    TORCH = "torch"


class _Flag(enum.StrEnum):
    OFF = "0"
    ON = "1"


class _FlashMLABackend(enum.StrEnum):
    FLASHINFER = "flashinfer"
    TRITON = "triton"
    TORCH = "torch"


_KERNEL_OF_BACKEND = {
    _FlashMLABackend.FLASHINFER: Kernel.AUTO,
    _FlashMLABackend.TRITON: Kernel.TRITON,
    _FlashMLABackend.TORCH: Kernel.TORCH,
}


def kv_cache_format() -> KVCacheFormat:
    """The KV cache format that the environment asks for; ``fp8`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_KV_CACHE_FORMAT`` names no known format.
    """
    return _read(KV_CACHE_FORMAT_ENV, KVCacheFormat.FP8)


def kernel() -> Kernel:
    """What reads NVFP4 pages.

    ``SGLANG_SM120_NVFP4_KERNEL``; unset, SGLang's ``SGLANG_SM120_FLASHMLA_BACKEND``
    decides, whose ``flashinfer`` means ``auto``.

    Raises:
        ValueError: one of them has a value that is unknown.
    """
    if os.environ.get(KERNEL_ENV, "").strip():
        return _read(KERNEL_ENV, Kernel.AUTO)
    return _KERNEL_OF_BACKEND[_read(FLASHMLA_BACKEND_ENV, _FlashMLABackend.FLASHINFER)]


def profile_path() -> str | None:
    """Where the measured kernel profile is asked to be; None for the usual place."""
    return os.environ.get(PROFILE_ENV, "").strip() or None


def checks_indices() -> bool:
    """Whether each call's slots are checked against the pool. It synchronizes.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    return _read(CHECK_INDICES_ENV, _Flag.OFF) is _Flag.ON


def store_mode() -> StoreMode:
    """How rows get into the pages; ``fused`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_NVFP4_STORE`` names no known mode.
    """
    return _read(STORE_MODE_ENV, StoreMode.FUSED)


def scale_rule() -> ScaleRule:
    """How the scale of 16 values is chosen; ``amax6`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_NVFP4_SCALE_RULE`` names no known rule.
    """
    return _read(SCALE_RULE_ENV, ScaleRule.AMAX6)


def _read(variable: str, default: _Choice) -> _Choice:
    return _parse(variable, os.environ.get(variable, ""), default)


@functools.cache
def _parse(variable: str, value: str, default: _Choice) -> _Choice:
    normalized = value.strip().lower()
    if not normalized:
        return default
    choices = [member.value for member in type(default)]
    if normalized not in choices:
        raise ValueError(f"{variable}={value!r}: expected {' or '.join(choices)}")
    return type(default)(normalized)
