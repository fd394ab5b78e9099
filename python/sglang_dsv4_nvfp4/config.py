"""The environment variables this feature reads, parsed and validated once.

In-tree these become fields of ``sglang/srt/environ.py``. Nothing here imports
torch or sglang: the plugin asks :func:`kv_cache_format` in every SGLang process,
and almost always the answer is ``fp8``.
"""

from __future__ import annotations

import enum
import functools
import os

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
    return _parse_format(os.environ.get(KV_CACHE_FORMAT_ENV, ""))


def kernel() -> Kernel:
    """What reads NVFP4 pages.

    ``SGLANG_SM120_NVFP4_KERNEL``; unset, SGLang's ``SGLANG_SM120_FLASHMLA_BACKEND``
    decides, whose ``flashinfer`` means ``auto``.

    Raises:
        ValueError: one of them has a value that is unknown.
    """
    chosen = os.environ.get(KERNEL_ENV, "")
    if chosen.strip():
        return _parse_kernel(chosen)
    return _KERNEL_OF_BACKEND[_parse_backend(os.environ.get(FLASHMLA_BACKEND_ENV, ""))]


def profile_path() -> str | None:
    """Where the measured kernel profile is asked to be; None for the usual place."""
    return os.environ.get(PROFILE_ENV, "").strip() or None


def checks_indices() -> bool:
    """Whether each call's slots are checked against the pool. It synchronizes.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    return bool(int(_parse_flag(os.environ.get(CHECK_INDICES_ENV, ""))))


def store_mode() -> StoreMode:
    """How rows get into the pages; ``fused`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_NVFP4_STORE`` names no known mode.
    """
    return _parse_store_mode(os.environ.get(STORE_MODE_ENV, ""))


def scale_rule() -> ScaleRule:
    """How the scale of 16 values is chosen; ``amax6`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_NVFP4_SCALE_RULE`` names no known rule.
    """
    return _parse_scale_rule(os.environ.get(SCALE_RULE_ENV, ""))


@functools.cache
def _parse_store_mode(value: str) -> StoreMode:
    return _parse(STORE_MODE_ENV, value, StoreMode.FUSED)


@functools.cache
def _parse_scale_rule(value: str) -> ScaleRule:
    return _parse(SCALE_RULE_ENV, value, ScaleRule.AMAX6)


@functools.cache
def _parse_format(value: str) -> KVCacheFormat:
    return _parse(KV_CACHE_FORMAT_ENV, value, KVCacheFormat.FP8)


@functools.cache
def _parse_kernel(value: str) -> Kernel:
    return _parse(KERNEL_ENV, value, Kernel.AUTO)


@functools.cache
def _parse_backend(value: str) -> _FlashMLABackend:
    return _parse(FLASHMLA_BACKEND_ENV, value, _FlashMLABackend.FLASHINFER)


@functools.cache
def _parse_flag(value: str) -> _Flag:
    return _parse(CHECK_INDICES_ENV, value, _Flag.OFF)


def _parse(variable: str, value: str, default: enum.Enum) -> enum.Enum:
    normalized = value.strip().lower()
    if not normalized:
        return default
    choices = [member.value for member in type(default)]
    if normalized not in choices:
        raise ValueError(f"{variable}={value!r}: expected {' or '.join(choices)}")
    return type(default)(normalized)
