"""A tree of SGLang's own files that the in-tree form edits, and nothing else."""

import shutil
from pathlib import Path

import pytest

from sglang_dsv4_nvfp4.intree import edits, places


@pytest.fixture(scope="session")
def installed() -> Path:
    """Where the installed ``sglang`` folder lies."""
    return places.installed_sglang().parent


@pytest.fixture(scope="session")
def edited_files(installed) -> list[str]:
    return sorted({edit.file for edit in edits.edits(installed, problems=[])})


@pytest.fixture
def checkout(installed, edited_files, tmp_path) -> Path:
    """As a user's clone, under git's own name: the package lies in ``python/``."""
    folder = tmp_path / "sglang"
    for file in [*edited_files, "sglang/_version.py"]:
        target = folder / "python" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(installed / file, target)
    return folder
