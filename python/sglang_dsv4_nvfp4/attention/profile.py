"""What ``sglang-dsv4-nvfp4 tune`` measured, and the planner goes by.

A profile is one JSON file a device::

    {device, versions, date,
     rows: [{num_heads, topk, page_size, extra_topk, extra_page_size, num_tokens,
             kernel, phase, chunks, head_tiles, us, spread_us}]}

``us`` is the median of CUDA-graph replays, ``spread_us`` the distance between the
quartiles; both are null where the kernel failed.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/profile.py``.
"""

from __future__ import annotations

import datetime
import functools
import json
import logging
import math
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.config import PROFILE_ENV, Kernel, profile_path
from sglang_dsv4_nvfp4.machine import cache_root, device_name, device_slug, versions

logger = logging.getLogger(__name__)

_SHAPE_FIELDS = (
    "num_heads",
    "topk",
    "page_size",
    "extra_topk",
    "extra_page_size",
    "num_tokens",
)
_TUNE = "sglang-dsv4-nvfp4 tune"
_Line = tuple[Kernel, Phase | None]


@dataclass(frozen=True)
class Row:
    """One measurement. Lengths and the sink are always given when measuring."""

    shape: AttentionShape
    decision: Decision
    us: float | None
    spread_us: float | None

    def as_json(self) -> dict:
        shape = {name: getattr(self.shape, name) for name in _SHAPE_FIELDS}
        return {
            **shape,
            **self.decision._asdict(),
            "us": self.us,
            "spread_us": self.spread_us,
        }

    @classmethod
    def from_json(cls, row: dict) -> Row:
        return cls(
            shape=AttentionShape(**{name: int(row[name]) for name in _SHAPE_FIELDS}),
            decision=Decision(
                Kernel(row["kernel"]),
                Phase(row["phase"]),
                int(row["chunks"]),
                int(row["head_tiles"]),
            ),
            us=_number(row["us"]),
            spread_us=_number(row["spread_us"]),
        )


@dataclass
class Profile:
    """Measurements of one device with one set of versions."""

    device: str
    versions: dict[str, str | None]
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    rows: list[Row] = field(default_factory=list)

    def best(
        self, shape: AttentionShape, decisions: Iterable[Decision]
    ) -> Decision | None:
        """The fastest of ``decisions`` for ``shape``; None if the profile cannot say.

        Only batches count at which every one of them was measured, so that none is
        judged by another batch than its rivals. Between two such batches times are
        interpolated, both on a logarithmic scale; past the ends the last one counts. Of
        extra widths the nearest one counts. A kernel that failed there is out.
        """
        by_line = {_line(decision): decision for decision in decisions}
        points = self._points(shape, by_line.keys())
        if not points:
            return None
        below, above = _neighbours(points, shape.num_tokens)
        expected = {
            line: _interpolate(
                (below, points[below][line]),
                (above, points[above][line]),
                shape.num_tokens,
            )
            for line in by_line
            if points[below][line] is not None and points[above][line] is not None
        }
        if not expected:
            return None
        return by_line[min(expected, key=expected.get)]

    def _points(
        self, shape: AttentionShape, lines: Collection[_Line]
    ) -> dict[int, dict[_Line, float | None]]:
        """Times of ``lines`` by batch, at the nearest width that has such a batch."""
        by_width: dict[int, dict[int, dict[_Line, float | None]]] = {}
        for row in self.rows:
            if _layer(row.shape) == _layer(shape) and _line(row.decision) in lines:
                times = by_width.setdefault(row.shape.extra_topk, {}).setdefault(
                    row.shape.num_tokens, {}
                )
                times[_line(row.decision)] = row.us
        complete = {
            width: points
            for width, by_tokens in by_width.items()
            if (
                points := {
                    tokens: times
                    for tokens, times in by_tokens.items()
                    if times.keys() == set(lines)
                }
            )
        }
        if not complete:
            return {}
        nearest = min(
            complete,
            key=lambda width: abs(math.log((width or 1) / (shape.extra_topk or 1))),
        )
        return complete[nearest]

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def has(self, shape: AttentionShape, decision: Decision) -> bool:
        """Whether this was measured or failed, whatever the chunks were then."""
        return any(
            _line(row.decision) == _line(decision)
            and all(
                getattr(row.shape, name) == getattr(shape, name)
                for name in _SHAPE_FIELDS
            )
            for row in self.rows
        )

    def write(self, path: Path) -> None:
        """Replace ``path`` in one step: an interruption leaves the old or the new."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "device": self.device,
            "versions": self.versions,
            "date": self.date,
            "rows": [row.as_json() for row in self.rows],
        }
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(content, indent=1) + "\n")
        part.replace(path)


def read(path: Path) -> Profile:
    """Read a profile.

    Raises:
        OSError: there is none.
        ValueError: it is no profile.
    """
    try:
        content = json.loads(path.read_text())
        return Profile(
            device=content["device"],
            versions=content["versions"],
            date=content["date"],
            rows=[Row.from_json(row) for row in content["rows"]],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no kernel profile ({type(error).__name__}: {error}); remove it, "
            f"or measure anew: {_TUNE}"
        ) from error


def misfit(profile: Profile) -> str | None:
    """Why a profile says nothing about this process; None if it does."""
    if profile.device != device_name():
        return f"it was measured on {profile.device}, this is {device_name()}"
    here = versions()
    for name in sorted(here.keys() | profile.versions.keys()):
        if profile.versions.get(name) != here.get(name):
            return (
                f"it was measured with {name} {profile.versions.get(name)}, this is "
                f"{here.get(name)}"
            )
    return None


def default_path() -> Path:
    """Where the profile of this process's device is: the variable's, or the cache's."""
    asked = profile_path()
    if asked:
        return Path(asked).expanduser()
    return cache_root() / "profiles" / f"{device_slug()}.json"


def load() -> Profile | None:
    """The profile that the planner goes by, read once a process and place.

    One that does not fit, or cannot be read, is ignored with a warning. So is a missing
    one that ``SGLANG_SM120_NVFP4_PROFILE`` names.
    """
    return _load(default_path())


@functools.cache
def _load(path: Path) -> Profile | None:
    try:
        profile = read(path)
    except FileNotFoundError:
        if profile_path():
            logger.warning("%s=%s: there is no such file", PROFILE_ENV, path)
        return None
    except (OSError, ValueError) as error:
        logger.warning("kernel profile ignored: %s", error)
        return None
    reason = misfit(profile)
    if reason:
        logger.warning(
            "kernel profile %s ignored: %s. Measure anew: %s", path, reason, _TUNE
        )
        return None
    return profile


def _line(decision: Decision) -> _Line:
    """What is one line over all batches: a kernel and its phase.

    The Triton kernel's phase is only whether it splits, which its batch decides.
    """
    if decision.kernel is Kernel.TRITON:
        return decision.kernel, None
    return decision.kernel, decision.phase


def _layer(shape: AttentionShape) -> tuple:
    """What a measurement must share with a shape to say something of it."""
    return shape.num_heads, shape.topk, shape.page_size, shape.extra_page_size


def _neighbours(points: Collection[int], num_tokens: int) -> tuple[int, int]:
    below = max((tokens for tokens in points if tokens <= num_tokens), default=None)
    above = min((tokens for tokens in points if tokens >= num_tokens), default=None)
    if below is None:
        return above, above
    return below, below if above is None else above


def _interpolate(
    below: tuple[int, float], above: tuple[int, float], num_tokens: int
) -> float:
    """``(tokens, us)`` on both sides; one point twice is its own time."""
    if below == above:
        return below[1]
    share = math.log(num_tokens / below[0]) / math.log(above[0] / below[0])
    start, end = math.log(below[1]), math.log(above[1])
    return math.exp(start + share * (end - start))


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
