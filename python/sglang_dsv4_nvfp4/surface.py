"""What of SGLang the seams rely on, as it was when they were written: a record.

``sglang_surface.json`` holds for each target what it takes; for a class that ours
derives from also the methods that ours overrides or calls, and all that write a cache.
It is made, not written, by ``make surface`` in a checkout; what then differs is what to
look at before another SGLang is served.

Not in-tree: what is in one tree changes together.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sglang_dsv4_nvfp4 import signatures

RECORD = Path(__file__).with_name("sglang_surface.json")


@functools.cache
def recorded() -> dict[str, Any]:
    """The record: ``sglang`` is its version, ``targets`` what :func:`describe` gave."""
    return json.loads(RECORD.read_text())


def describe(owner: Any, methods: Iterable[str] = ()) -> dict[str, Any]:
    """What ``owner``, a function or a class, takes; of a class its methods too: those
    named, and all that write a cache."""
    seen: dict[str, Any] = {"signature": signatures.signature_text(owner)}
    if isinstance(owner, type):
        seen["methods"] = {
            name: signatures.signature_text(getattr(owner, name))
            for name in sorted({*methods, *writers(owner)})
        }
    return seen


def problem(target: str, owner: Any) -> str | None:
    """What differs between ``owner`` and the record of ``target``, if anything.

    A method that writes a cache and is not in the record would write FP8 rows into NVFP4
    pages; any other that is new is none of our business.
    """
    expected = recorded()["targets"].get(target)
    if expected is None:
        return f"{target} is not in {RECORD.name} (`make surface` in a checkout)"
    found = signatures.difference(target, owner, expected["signature"])
    if found:
        return found
    methods = expected.get("methods", {})
    for name, signature in methods.items():
        method = getattr(owner, name, None)
        if method is None:
            return f"{target} has no {name}"
        found = signatures.difference(name, method, signature)
        if found:
            return f"{target}: {found}"
    unknown = sorted(writers(owner) - set(methods))
    if unknown:
        return f"{target} has unknown writers: {', '.join(unknown)}"
    return None


def writers(owner: Any) -> set[str]:
    """Names of a class's methods that write a cache; of a function, none."""
    if not isinstance(owner, type):
        return set()
    return {name for name in dir(owner) if name.startswith("set_")}
