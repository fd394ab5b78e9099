"""Comparing what is installed with what this package was written against.

Both SGLang's seams and FlashInfer's entry points are held to a signature that is
written down as text: parameter names, their kinds, and which have a default.

Not in-tree: what is in one tree changes together.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from typing import Any


def resolve(target: str) -> Any:
    """The object that the dotted path ``target`` names.

    Raises:
        ImportError, AttributeError: nothing there.
    """
    return pkgutil.resolve_name(target)


def signature_text(function: Callable) -> str:
    """``(a, b=, *, c=, **kwargs)``: a signature without annotations or values.

    Wrappers are looked through, so a function that is already hooked still
    shows the signature that its callers use.
    """
    parts = []
    keyword_only = False
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            keyword_only = True
            parts.append(f"*{name}")
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            parts.append(f"**{name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        has_default = parameter.default is not parameter.empty
        parts.append(f"{name}=" if has_default else name)
    return f"({', '.join(parts)})"


def mismatch(target: str, expected: str) -> str | None:
    """What is wrong with ``target``, or None where it has the expected signature."""
    try:
        found = resolve(target)
    except Exception as error:
        # A broken package can raise anything while it is imported.
        return f"{target} is not there ({type(error).__name__}: {error})"
    return difference(target, found, expected)


def difference(name: str, found: Callable, expected: str) -> str | None:
    """What ``found``, which goes by ``name``, takes instead of ``expected``, if so."""
    actual = signature_text(found)
    if actual != expected:
        return f"{name} takes {actual}, expected {expected}"
    return None
