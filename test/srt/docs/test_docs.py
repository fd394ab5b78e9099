"""README and docs: commands that exist, links that lead somewhere, messages that come."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dsv4_nvfp4.cli.main import build_parser, main

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [
    *(ROOT / "python").rglob("*.py"),
    *(ROOT / "benchmark").rglob("*.py"),
]


def commands(start):
    """Command lines of all pages, their continuations joined and comments cut."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE):
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_0-9]+=\S*", words[0]):
                words = words[1:]
            if words[: len(start)] == list(start):
                found.append(pytest.param(words, id=f"{page.stem}: {' '.join(words)}"))
    return found


@pytest.mark.parametrize("words", commands(["sglang-dsv4-nvfp4"]))
def test_our_commands_take_their_arguments(words):
    build_parser().parse_args(words[1:])


@pytest.mark.parametrize("words", commands(["sglang-dsv4-nvfp4", "capacity"]))
def test_what_needs_no_gpu_runs(words, device, capsys):
    assert main(words[1:]) == 0
    assert "--max-total-tokens" in capsys.readouterr().out


@pytest.mark.parametrize("words", commands(["python"]))
def test_scripts_know_their_options(words):
    script = ROOT / words[1] if words[1] != "-m" else None
    if script is None:
        assert words[2].startswith(("pytest", "sglang"))
        return
    task = [word for word in words[2:3] if not word.startswith("-")]
    help_text = subprocess.run(
        [sys.executable, str(script), *task, "--help"], capture_output=True, text=True
    )
    assert help_text.returncode == 0, help_text.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option in help_text.stdout


@pytest.mark.parametrize("words", commands(["sglang", "serve"]))
def test_launches_are_sglangs(words):
    from sglang.srt.server_args import ServerArgs

    fields = set(ServerArgs.__struct_fields__)
    for option in (word for word in words if word.startswith("--")):
        assert option[2:].replace("-", "_") in fields


@pytest.mark.parametrize("words", commands(["make"]))
def test_make_has_its_targets(words):
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)


def anchors(page):
    """GitHub's of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def messages():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    for line in re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE):
        for message in re.findall(r"`([^`]*)`", line):
            if "(SGLang's)" not in line:
                yield message


@pytest.mark.parametrize("message", messages())
def test_messages_are_ones_that_come(message):
    """Each piece between what is filled in, whatever the source's line breaks."""
    pieces = [piece.strip(" ;:,'") for piece in message.split("...")]
    pieces = [piece for piece in pieces if len(piece) > 3]
    assert pieces
    for piece in pieces:
        assert any(piece in text for text in texts()), piece


def texts():
    for source in SOURCES:
        joined = re.sub(r'"\s*\n\s*f?"', "", source.read_text())
        yield re.sub(r"\{[^{}]*\}", "", joined)
