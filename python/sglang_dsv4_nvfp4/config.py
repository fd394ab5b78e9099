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


class AttentionBackend(enum.StrEnum):
    FLASHINFER = "flashinfer"
    TORCH = "torch"


def kv_cache_format() -> KVCacheFormat:
    """The KV cache format that the environment asks for; ``fp8`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_KV_CACHE_FORMAT`` names no known format.
    """
    return _parse_format(os.environ.get(KV_CACHE_FORMAT_ENV, ""))


def attention_backend() -> AttentionBackend:
    """The backend that reads NVFP4 pages; ``flashinfer`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_FLASHMLA_BACKEND`` names a backend that cannot
            read NVFP4 pages.
    """
    return _parse_backend(os.environ.get(FLASHMLA_BACKEND_ENV, ""))


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
def _parse_backend(value: str) -> AttentionBackend:
    try:
        return _parse(FLASHMLA_BACKEND_ENV, value, AttentionBackend.FLASHINFER)
    except ValueError as error:
        raise ValueError(
            f"{error} with {KV_CACHE_FORMAT_ENV}={KVCacheFormat.NVFP4.value}"
        ) from None


def _parse(variable: str, value: str, default: enum.Enum) -> enum.Enum:
    normalized = value.strip().lower()
    if not normalized:
        return default
    choices = [member.value for member in type(default)]
    if normalized not in choices:
        raise ValueError(f"{variable}={value!r}: expected {' or '.join(choices)}")
    return type(default)(normalized)
