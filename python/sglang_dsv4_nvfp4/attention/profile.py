"""What ``sglang-dsv4-nvfp4 tune`` measured, and the planner goes by.

A profile is one JSON file a device::

    {device, versions, date,
     rows: [{num_heads, topk, page_size, extra_topk, extra_page_size, num_tokens,
             kernel, phase, chunks, head_tiles, us, spread_us}]}

``us`` is the median of CUDA-graph replays, ``spread_us`` the distance between the
quartiles. Outside of SGLang's tree; in-tree it would lie beside the kernel
configurations in ``sglang/srt/layers/``.
"""

from __future__ import annotations

import datetime
import functools
import json
import logging
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.config import PROFILE_ENV, Kernel, profile_path
from sglang_dsv4_nvfp4.platform import device_name, versions

logger = logging.getLogger(__name__)

_SHAPE_FIELDS = (
    "num_heads",
    "topk",
    "page_size",
    "extra_topk",
    "extra_page_size",
    "num_tokens",
)
_DECISION_FIELDS = Decision._fields
_TUNE = "sglang-dsv4-nvfp4 tune"


@dataclass(frozen=True)
class Row:
    """One measurement. Lengths and the sink are always given when measuring."""

    shape: AttentionShape
    decision: Decision
    us: float
    spread_us: float

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
            us=float(row["us"]),
            spread_us=float(row["spread_us"]),
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
        """The fastest of ``decisions`` for ``shape``; None if none was measured.

        Between two measured batches times are interpolated, both on a logarithmic
        scale; of extra widths that were not measured the nearest one counts.
        """
        timed = [
            (us, decision)
            for decision in decisions
            if (us := self._expected_us(shape, decision)) is not None
        ]
        return min(timed, key=lambda pair: pair[0])[1] if timed else None

    def _expected_us(self, shape: AttentionShape, decision: Decision) -> float | None:
        rows = [
            row
            for row in self.rows
            if row.decision[:2] == decision[:2]
            and row.shape.num_heads == shape.num_heads
            and row.shape.topk == shape.topk
            and bool(row.shape.extra_topk) == bool(shape.extra_topk)
            and row.shape.extra_page_size == shape.extra_page_size
        ]
        if not rows:
            return None
        width = min(
            (row.shape.extra_topk for row in rows),
            key=lambda width: abs(math.log((width or 1) / (shape.extra_topk or 1))),
        )
        return _interpolate(
            {
                row.shape.num_tokens: row.us
                for row in rows
                if row.shape.extra_topk == width
            },
            shape.num_tokens,
        )

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def has(self, shape: AttentionShape, decision: Decision) -> bool:
        """Whether this was measured, whatever the chunks were then."""
        return any(
            row.decision[:2] == decision[:2]
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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    device = re.sub(r"[^a-z0-9]+", "_", device_name().lower())
    return cache / "sglang-dsv4-nvfp4" / "profiles" / f"{device}.json"


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


def _interpolate(us_by_tokens: dict[int, float], num_tokens: int) -> float:
    """Past the measured ends the nearest measurement counts, for every kernel alike."""
    below = max((t for t in us_by_tokens if t <= num_tokens), default=None)
    above = min((t for t in us_by_tokens if t >= num_tokens), default=None)
    if below is None or above is None or below == above:
        return us_by_tokens[above if below is None else below]
    share = math.log(num_tokens / below) / math.log(above / below)
    logs = [math.log(us_by_tokens[tokens]) for tokens in (below, above)]
    return math.exp(logs[0] + share * (logs[1] - logs[0]))
