"""Every place where SGLang is touched: one table, for both forms of this feature.

As a plugin: SGLang's official plugin system does the patching (``HookRegistry``); this
module checks before anything is hooked that each target is still the one we were written
against (``surface.py``), and can tell afterwards whether our hooks are in force. In-tree
(``intree/``): each seam is a statement at its site.

Not in-tree: the sites are.
"""

from __future__ import annotations

import enum
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_dsv4_nvfp4 import signatures, surface
from sglang_dsv4_nvfp4.machine import distribution_version


class Kind(enum.Enum):
    """How a target is met: as a plugin, and in-tree.

    SUBCLASS: one of our classes derives from it. In-tree: nothing at the target.
    REPLACE: our subclass takes its place. In-tree: ``if``, after ``site``, a name in a
        function, is given the class.
    AROUND: a guard before it. In-tree: at its head.
    AFTER: a check when SGLang starts. In-tree: at its end.
    REGISTER: it registers ours, by the class that REPLACE puts in place of SGLang's.
        In-tree: an entry of ``site``, a dictionary by class.
    """

    SUBCLASS = "subclass"
    REPLACE = "replace"
    AROUND = "around"
    AFTER = "after"
    REGISTER = "register"

    @property
    def is_hook(self) -> bool:
        """Whether SGLang's ``HookType`` has a member of this value."""
        return self in (Kind.REPLACE, Kind.AROUND, Kind.AFTER)


@dataclass(frozen=True)
class Seam:
    """One target in SGLang.

    hook: ``module:name`` in this package, imported only when NVFP4 is on; for AROUND and
        AFTER one of ``guards.py``.
    purpose: what ours does, for ``doctor``.
    site: where the in-tree form stands, if not at the target itself.
    calls: for a class, its methods that ours calls and does not override.
    leaves: for a class, its methods that write a cache and that ours does not override.
    """

    target: str
    kind: Kind
    hook: str
    purpose: str
    site: str = ""
    calls: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()

    @property
    def target_name(self) -> str:
        """The last part of ``target``."""
        return self.target.rpartition(".")[2]

    @property
    def hook_module(self) -> str:
        """Ours, under this package."""
        return self.hook.partition(":")[0]

    @property
    def hook_name(self) -> str:
        """What ``hook_module`` calls it."""
        return self.hook.partition(":")[2]


_SRT = "sglang.srt"
_OPS = "sglang.kernels.ops.attention"
_POOLS = f"{_SRT}.mem_cache.deepseek_v4_memory_pool"
_CANARY = f"{_SRT}.kv_canary.pool_patcher.api"
TOKEN_TO_KV_POOL = f"{_POOLS}.DeepSeekV4TokenToKVPool"
ATTENTION = f"{_OPS}.flash_mla_sm120.flash_mla_with_kvcache_sm120"

SEAMS: tuple[Seam, ...] = (
    Seam(
        f"{_POOLS}.DeepSeekV4SingleKVPool",
        Kind.SUBCLASS,
        "mem_cache.single_kv_pool:DeepSeekV4NVFP4SingleKVPool",
        "one cache's NVFP4 pages",
        # The base refuses it.
        leaves=("set_kv_buffer",),
    ),
    Seam(
        TOKEN_TO_KV_POOL,
        Kind.REPLACE,
        "mem_cache.token_to_kv_pool:DeepSeekV4NVFP4TokenToKVPool",
        "NVFP4 pages, their setters and getters",
        site=f"{_SRT}.mem_cache.kv_cache_configurator.KVCacheConfigurator."
        "_build_dsv4_kv_pool.pool_cls",
        calls=("_swa_local_layer_id",),
        leaves=(
            # These hand rows to a single cache's setters, which are ours.
            "set_extra_key_buffer",
            "set_extra_key_buffer_fused",
            "set_swa_key_buffer_radix",
            # Not the latents': refused by the base, the indexer's, PD's mark.
            "set_kv_buffer",
            "set_index_k_fp4",
            "set_index_k_fused",
            "set_index_k_scale_buffer",
            "set_swa_valid_from",
        ),
    ),
    Seam(
        f"{_SRT}.model_executor.pool_configurator.DSV4PoolConfigurator."
        "_get_paged_kv_bytes_per_token",
        Kind.AROUND,
        "guards:count_paged_kv_bytes",
        "384 bytes a latent slot, no page padding",
    ),
    Seam(
        ATTENTION,
        Kind.AROUND,
        "guards:attend",
        "attention over NVFP4 pages",
    ),
    Seam(
        f"{_OPS}.dsv4.compress.compress_norm_rope_store",
        Kind.AROUND,
        "guards:store_compressed",
        "the c4 and c128 stores; the indexer's passes through",
    ),
    Seam(
        f"{_SRT}.mem_cache.hybrid_cache.hybrid_cache_controller."
        "HybridCacheController.attach_storage_backend",
        Kind.AROUND,
        "guards:attach_storage",
        "names the format in the keys of HiCache's storage",
    ),
    Seam(
        f"{_SRT}.arg_groups.deepseek_v4_hook.apply_deepseek_v4_defaults",
        Kind.AFTER,
        "guards:check_server_args",
        "refuse options that NVFP4 cannot serve",
    ),
    Seam(
        f"{_CANARY}.register_pool_attacher",
        Kind.REGISTER,
        "mem_cache.canary:attach_dsv4_nvfp4",
        "the KV canary over NVFP4 pages of the window",
        site=f"{_CANARY}._POOL_ATTACHERS",
    ),
)

# What each target was before it was hooked, by target.
_stock: dict[str, Any] = {}


def sglang_version() -> str:
    """The SGLang that the seams were written against."""
    return surface.recorded()["sglang"]


def version_problem() -> str | None:
    """Why the installed SGLang is not the one the seams were written against.

    Signatures do not show everything that is relied on: the bytes of a plan row,
    what a kernel stores where, who reads a buffer.
    """
    installed = distribution_version("sglang")
    # A local part names a build of the same source.
    if installed is None or installed.split("+")[0] != sglang_version():
        return f"sglang {installed} is installed, {sglang_version()} is needed"
    return None


def problems() -> dict[str, str | None]:
    """For each target, what does not fit; None where it does."""
    return {seam.target: _problem(seam) for seam in SEAMS}


def register() -> None:
    """Register every hook with SGLang, which applies them after the plugins ran.

    Raises:
        RuntimeError: a seam does not fit the installed SGLang; nothing is hooked.
    """
    unfit = [
        problem for problem in (version_problem(), *problems().values()) if problem
    ]
    if unfit:
        raise RuntimeError(
            f"SGLang does not fit: {'; '.join(unfit)}. "
            f"pip install sglang=={sglang_version()}, or unset the variable to serve in "
            "FP8"
        )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for seam in SEAMS:
        if seam.kind.is_hook:
            _stock[seam.target] = signatures.resolve(seam.target)
            HookRegistry.register(seam.target, _hook(seam), HookType(seam.kind.value))
        elif seam.kind is Kind.REGISTER:
            signatures.resolve(seam.target)(replacement(), _hook(seam))


def replacing(table: tuple[Seam, ...]) -> Seam:
    """The one seam of ``table`` that puts a class of ours in another's place."""
    (seam,) = (seam for seam in table if seam.kind is Kind.REPLACE)
    return seam


def replacement() -> type:
    """Our class in the place of SGLang's pool of all layers."""
    return _hook(replacing(SEAMS))


def is_registered() -> bool:
    """Whether :func:`register` has run in this process."""
    return bool(_stock)


def stock(target: str) -> Any:
    """SGLang's own object at ``target``, whether it is hooked or not."""
    return _stock.get(target) or signatures.resolve(target)


def require_installed() -> None:
    """Refuse to go on where one of our hooks is not in force.

    ``HookRegistry.apply_hooks`` logs a failure and carries on, and another plugin may
    replace what we replaced; a server with some of its seams would read one format
    and write another.

    Raises:
        RuntimeError: naming the seams that are missing.
    """
    missing = [
        seam.target for seam in SEAMS if seam.kind.is_hook and not _is_in_force(seam)
    ]
    if missing:
        raise RuntimeError(
            f"this package is not in force at {', '.join(missing)}: load it with "
            "sglang.srt.plugins.load_plugins() before any of SGLang's workers start, "
            "and with no other plugin that replaces the same"
        )


def _is_in_force(seam: Seam) -> bool:
    if seam.target not in _stock:
        return False
    hook, current = _hook(seam), signatures.resolve(seam.target)
    if isinstance(hook, type):
        return issubclass(current, hook)
    # SGLang wraps a function in closures over each hook, innermost first.
    while current is not None:
        if any(
            cell.cell_contents is hook
            for cell in getattr(current, "__closure__", None) or ()
        ):
            return True
        current = getattr(current, "__wrapped__", None)
    return False


@functools.cache
def _hook(seam: Seam) -> Any:
    module = importlib.import_module(f"{__package__}.{seam.hook_module}")
    hook = getattr(module, seam.hook_name)
    if seam.kind is Kind.AROUND:
        return _going_on(hook)
    return _checked_startup(hook) if seam.kind is Kind.AFTER else hook


def _going_on(guard: Callable) -> Callable:
    """``guard``, whose ``original`` is the target with the arguments that came."""

    @functools.wraps(guard)
    def run(original: Callable, *args, **kwargs) -> Any:
        return guard(functools.partial(original, *args, **kwargs), *args, **kwargs)

    return run


def _checked_startup(check: Callable) -> Callable:
    """``check``, once the hooks are known to be in force; one line where it refuses."""

    @functools.wraps(check)
    def run(*args, **kwargs) -> None:
        require_installed()
        try:
            check(*args, **kwargs)
        except ValueError as error:
            # Like every other refusal at startup.
            raise SystemExit(f"sglang-dsv4-nvfp4: {error}") from None

    return run


def _problem(seam: Seam) -> str | None:
    try:
        owner = stock(seam.target)
    except Exception as error:
        # A broken package can raise anything while it is imported.
        return f"{seam.target} is not there ({type(error).__name__}: {error})"
    return surface.problem(seam.target, owner)


def describe(seam: Seam) -> dict[str, Any]:
    """What the record should hold of a seam's target, from the installed SGLang."""
    return surface.describe(stock(seam.target), [*overridden(seam), *seam.calls])


def overridden(seam: Seam) -> set[str]:
    """Methods of a class's target that ours has a definition of."""
    owner, hook = stock(seam.target), _hook(seam)
    if not isinstance(hook, type):
        return set()
    return {
        name
        for name, value in vars(hook).items()
        if callable(value) and hasattr(owner, name) and name != "__init__"
    }
