"""The comparison of the two forms' tests: what counts as a difference."""

from support import in_tree

SKIP = f"skipped {in_tree.NEEDS_STOCK}"
PREFIX = "test.srt"


def compare(with_plugin, tree):
    return in_tree.differences(
        {f"{PREFIX}.{name}": outcome for name, outcome in with_plugin.items()},
        {f"{PREFIX}.{name}": outcome for name, outcome in tree.items()},
    )


def test_alike_is_no_difference(capsys):
    both = {"a::x": "passed", "a::y": "skipped needs a GPU"}
    assert compare(both, both) == []
    assert "2 tests came out alike" in capsys.readouterr().out


def test_what_is_about_the_plugin_or_the_repository_is_no_difference():
    assert compare({"plugins::x": "passed"}, {"plugins::x": SKIP}) == []
    assert compare({"docs.test_docs::x": "passed"}, {}) == []


def test_every_other_outcome_is_one():
    for with_plugin, tree in (
        ({"a::x": "passed"}, {"a::x": "failure boom"}),
        ({"a::x": "failure boom"}, {"a::x": "passed"}),
        ({"a::x": "passed"}, {"a::x": "skipped needs a GPU"}),
        ({"a::x": "passed"}, {}),
        ({}, {"a::x": "passed"}),
    ):
        (line,) = compare(with_plugin, tree)
        assert "a::x: " in line and "with the plugin" in line


def test_outcomes_are_read_from_junits_file(tmp_path):
    path = tmp_path / "results.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="a" name="x"/>'
        '<testcase classname="a" name="y"><skipped message="no GPU"/></testcase>'
        '<testcase classname="a" name="z"><properties/><failure message="boom"/>'
        "</testcase></testsuite></testsuites>"
    )
    assert in_tree.outcomes(path) == {
        "a::x": "passed",
        "a::y": "skipped no GPU",
        "a::z": "failure boom",
    }
