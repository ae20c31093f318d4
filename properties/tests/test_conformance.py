"""The conformance matrix: what pytest reported becomes the right mark, and limits are shown with what they do."""

import pytest

from fuzz.kept import Kept
from oracle.tests.cases import ordinary
from properties import conformance
from properties.conformance import CANONICAL, DEVIATES, HOLDS, UNJUDGED, Finding, Row

REPORT = """<testsuites><testsuite><testcase name="test_of_the_clause[f]"><properties>
<property name="clause" value="4"/><property name="ratio" value="2.5"/><property name="known" value="a reason"/>
</properties>{}</testcase></testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("child", "outcome", "known"),
    [
        ("", "holds", None),
        ('<failure message="y: DEVIATES"/>', "deviates", None),
        ('<error message="broken"/>', "error", None),
        ('<skipped type="pytest.xfail" message="a reason"/>', "deviates", "a reason"),
        ('<skipped type="pytest.skip" message="not promised: segment_pos"/>', "NOT COMPARABLE", "a reason"),
        ('<skipped type="pytest.skip" message="not promised: an initial state"/>', "NOT COMPARABLE", "a reason"),
        ('<skipped type="pytest.skip" message="not promised: gradients"/>', "not supported", "a reason"),
        (
            '<skipped type="pytest.skip" message="not promised: equal bits at another width"/>',
            "not supported",
            "a reason",
        ),
    ],
)
def test_an_outcome_is_read_from_pytests_report(tmp_path, child, outcome, known):
    """What lacks resets or a state cannot be compared where they are the question; anything else is not supported."""
    path = tmp_path / "report.xml"
    path.write_text(REPORT.format(child))
    (finding,) = conformance._read(path, "canonical")
    assert (finding.clause, finding.test, finding.grade, finding.ratio) == (4, "test_of_the_clause", "canonical", 2.5)
    assert (finding.outcome, finding.known) == (outcome, known)


@pytest.mark.parametrize(
    ("accurate", "canonical", "mark"),
    [
        (["holds", "holds"], [], HOLDS),
        (["holds", "not supported"], [], HOLDS),
        (["holds", "NOT COMPARABLE"], [], HOLDS),
        (["holds", "deviates"], ["holds", "holds"], CANONICAL),
        (["holds", "deviates"], ["holds", "deviates"], DEVIATES),
        (["error"], [], DEVIATES),
        (["not supported"], [], "·"),
        (["NOT COMPARABLE", "not supported"], [], "–"),
        ([], [], "·"),
    ],
)
def test_a_clause_has_the_mark_of_all_its_tests(accurate, canonical, mark):
    """One that deviates decides; those that were not run do not, unless none was."""
    row = Row("f")
    for grade, outcomes in (("accurate", accurate), ("canonical", canonical)):
        found = [Finding(4, f"test_{n}", outcome, grade) for n, outcome in enumerate(outcomes)]
        setattr(row, grade, [*found, Finding(5, "test_of_another_clause", "deviates", grade)])
    assert row.cell(4) == mark


def test_every_mark_is_explained():
    """And no two are the same."""
    marks = [HOLDS, CANONICAL, DEVIATES, *UNJUDGED.values()]
    assert len(set(marks)) == len(marks)
    assert all(f"{mark} " in conformance.LEGEND for mark in marks)


def test_a_subjects_limits_are_shown_with_what_they_do(tmp_path, monkeypatch):
    """Only its own, and only what it does not promise."""
    monkeypatch.setattr(conformance, "ROOT", tmp_path)
    monkeypatch.setattr(conformance, "CASES", tmp_path)
    limit = "not promised: width 1; asked anyway: y: holds, worst ratio 0\ndx: DEVIATES, worst ratio 2\n  1 of 3"
    for seed, (subject, verdict) in enumerate([("f", limit), ("f", "y: DEVIATES"), ("g", limit), ("f", "")]):
        kept = Kept(1, "test_y_and_h_last_lie_within_their_bounds", ordinary(seed), {}, subject, verdict=verdict)
        kept.write(tmp_path / f"{seed}.json")
    assert conformance._limits("f") == [
        ("width 1; asked anyway: dx: DEVIATES, worst ratio 2", "python -m fuzz replay 0.json")
    ]
