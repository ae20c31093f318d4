"""Kept cases: what is written is what is read, a crash leaves a case behind, and commands end with the right code."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fuzz.__main__ as command
from conftest import DEVICE
from fuzz import kept as keeping
from fuzz.kept import LINE, MOST_NUMBERS, ROOT, Kept, KeptError, checksum, found_on, read
from fuzz.recorder import Recorder
from kernels.subjects import Subject
from oracle import Case
from oracle.case import AXES
from oracle.tests.cases import ordinary
from properties.clauses import CONTRACT
from properties.contract import Clause
from properties.mutants.plain import right
from properties.strategies import Recipe
from properties.trial import Trial

CLAUSE_1 = "test_y_and_h_last_lie_within_their_bounds"
CLAUSE_3 = "test_any_split_with_the_state_handed_on_is_one_call"
LARGE = Recipe(rows=3, steps=70, width=9, resets="dense", state="normal", overrides=(("gate_a", 3, -100.0),))
RIGHT, WRONG = "properties.mutants.plain:right", "properties.mutants.plain:c_is_7_99"


def of(case: Case, **fields) -> Kept:
    kept = Kept(clause=1, test=CLAUSE_1, case=case, params={}, subject=RIGHT)
    return replace(kept, **fields)


def round_trip(case: Case, tmp_path, **fields) -> Case:
    return read(of(case, **fields).write(tmp_path / "kept.json")).case


def assert_same_bits(got: Case, wanted: Case):
    """Every array equal bit for bit, NaN as any NaN."""
    assert got.dtype == wanted.dtype
    for name in AXES:
        left, right_ = getattr(got, name), getattr(wanted, name)
        if right_ is None:
            assert left is None
            continue
        assert (left.dtype, left.shape) == (right_.dtype, right_.shape)
        if left.dtype.kind == "f":
            left, right_ = (np.where(np.isnan(v), np.float32(np.nan), v).view(np.int32) for v in (left, right_))
        assert np.array_equal(left, right_), name


def small(values, dtype="float32", positions=None) -> Case:
    """A case of one row and one channel with these values in every array."""
    tokens = np.reshape(np.asarray(values, np.float64), (1, -1, 1))
    segment_pos = None if positions is None else np.reshape(positions, (1, -1))
    state = tokens[:, 0]
    return Case(tokens, tokens, tokens, state[0], segment_pos, state, tokens, state, dtype)


# --- what is written is what is read


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("float32", [0.0, -0.0, 1 / 3, np.nan, np.inf, -np.inf, 2.0**-149, -(2.0**-127), 3.4028234663852886e38]),
        ("bfloat16", [0.0, -0.0, 1.0078125, np.nan, np.inf, 2.0**-133, -(2.0**-127), 3.3895313892515355e38]),
        ("float16", [0.0, -0.0, 1.0009765625, np.nan, -np.inf, 2.0**-24, -(2.0**-15), 65504.0]),
    ],
)
def test_every_value_survives_bit_for_bit(tmp_path, dtype, values):
    """A decimal or a detour would keep another case than the one that failed."""
    case = small([np.float32(v) for v in values], dtype)
    assert_same_bits(round_trip(case, tmp_path), case)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_positions_survive_with_their_dtype(tmp_path, dtype):
    """Beyond 2^53 a float would round them; the dtype is part of what is tested."""
    extremes = [0, -1, np.iinfo(dtype).max, np.iinfo(dtype).min]
    if dtype is np.int64:
        extremes += [2**31, 2**32, 2**53 + 1]
    positions = np.array(extremes, dtype)
    case = small(np.ones(len(extremes)), positions=positions)
    assert_same_bits(round_trip(case, tmp_path), case)


def test_absent_arrays_stay_absent(tmp_path):
    """None is not zeros: the two are different calls."""
    whole = ordinary(0)
    for names in (["segment_pos"], ["h0"], ["dy"], ["dh_last"], ["segment_pos", "h0", "dy", "dh_last"]):
        case = whole.replace(**dict.fromkeys(names))
        assert_same_bits(round_trip(case, tmp_path), case)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)], ids=str)
def test_empty_sizes_keep_their_shape(tmp_path, shape):
    """A list of nothing does not tell its shape."""
    rows, steps, width = shape
    tokens, state = np.zeros(shape), np.ones((rows, width))
    case = Case(tokens, tokens, tokens, np.ones(width), np.zeros((rows, steps), np.int32), state, tokens, state)
    assert_same_bits(round_trip(case, tmp_path), case)


def test_everything_beside_the_case_survives(tmp_path):
    """Where it was found, by what, and what was said."""
    written = of(
        ordinary(0),
        clause=3,
        test=CLAUSE_3,
        params={"cuts": [1, 5], "layouts": [["x", "strided"]], "zero": False, "sign": -1.0},
        subject="some/file.py:f",
        device="cuda",
        grade="canonical",
        verdict="y: DEVIATES\n  twice",
        versions={"torch": "2"},
    )
    got = read(written.write(tmp_path / "kept.json"))
    assert replace(got, case=written.case) == written


def test_params_become_plain_json(tmp_path):
    """Tuples and NumPy's numbers, as strategies and checks have them."""
    params = {"cuts": (np.int64(1), 5), "place": ("x", 3), "deep": {"value": np.float64(0.1)}}
    got = read(of(ordinary(0), params=params).write(tmp_path / "kept.json")).params
    assert got == {"cuts": [1, 5], "place": ["x", 3], "deep": {"value": 0.1}}
    assert type(got["cuts"][0]) is int


def test_the_file_is_made_for_reading_and_for_diffs(tmp_path):
    """What fits on a line stands on one; the verdict has its own lines."""
    path = of(small([1.0, 2.0]), verdict="first\nsecond").write(tmp_path / "kept.json")
    text = path.read_text()
    assert '\n "verdict": ["first", "second"],\n' in text
    assert text.endswith("}\n")
    assert max(map(len, text.splitlines())) <= LINE
    assert list(json.loads(text))[:3] == ["format", "clause", "test"]


def test_equal_numbers_are_written_once(tmp_path):
    """A case of 64 channels of which none is special is read at a glance."""
    shape, state = (1, 2, 64), (1, 64)
    ones, nans, zeros = np.ones(shape), np.full(shape, np.nan), np.zeros(state)
    gate_a = np.broadcast_to(np.where(np.arange(64) == 3, -0.0, 0.0), shape)
    case = Case(ones, nans, gate_a, np.full(64, -17.0), None, zeros, ones.copy(), None, "bfloat16")
    path = of(case).write(tmp_path / "kept.json")
    assert_same_bits(read(path).case, case)
    written = json.loads(path.read_text())["case"]
    once = {"x": "0x1.0000000000000p+0", "gate_x": "nan", "a_param": "-0x1.1000000000000p+4", "h0": "0x0.0p+0"}
    assert {name: written[name] for name in once} == {name: {"every": value} for name, value in once.items()}
    assert isinstance(written["gate_a"], list)


# --- names


def test_the_name_is_that_of_the_content():
    """The same case has one file however often it is found; where and by what it was found is no content."""
    first = of(ordinary(0))
    assert re.fullmatch(r"y-and-h-last-lie-within-their-bounds-[0-9a-f]{8}\.json", first.file_name)
    elsewhere = replace(first, subject="other", device="cuda", grade="canonical", verdict="v", versions={"torch": "2"})
    assert elsewhere.file_name == first.file_name
    assert replace(first, recipe=Recipe()).file_name == first.file_name


def test_among_finds_the_name_is_that_of_the_subject_too():
    """A later run on another subject would take an earlier one's file; so would the other grade, or device."""
    first = of(ordinary(0), subject="folder/my_kernel.py:rglru")
    assert re.fullmatch(
        r"y-and-h-last-lie-within-their-bounds-on-my-kernel-py-rglru-[0-9a-f]{8}\.json", first.found_name
    )
    changes = (
        {"subject": "other/my_kernel.py:rglru"},
        {"grade": "canonical"},
        {"device": "cuda"},
        {"params": {"n": 1}},
    )
    assert len({first.found_name, *(replace(first, **change).found_name for change in changes)}) == 5
    assert replace(first, verdict="v", versions={"torch": "2"}).found_name == first.found_name
    assert len(replace(first, subject="m:" + 300 * "f").found_name) < 200


@pytest.mark.parametrize(
    "change",
    [
        {"case": ordinary(1)},
        {"case": ordinary(0).replace(h0=None)},
        {"case": ordinary(0).replace(segment_pos=np.zeros((2, 12), np.int64))},
        {"params": {"cuts": [1]}},
        {"test": CLAUSE_3},
    ],
    ids=["values", "absent", "positions", "params", "test"],
)
def test_another_case_has_another_name(change):
    """Two cases in one file would be one lost."""
    assert replace(of(ordinary(0)), **change).file_name != of(ordinary(0)).file_name


def test_the_name_survives_the_round_trip(tmp_path):
    """`keep` and the corpus's own check compare them."""
    for case, recipe in ((small([np.nan, -0.0]), None), (LARGE.build(), LARGE)):
        kept = of(case, recipe=recipe, params={"cuts": (1, 2)})
        assert read(kept.write(tmp_path / "kept.json")).file_name == kept.file_name


# --- written whole or not at all


def test_nothing_but_the_file_is_left(tmp_path):
    """Folders are made, parts are not left."""
    path = of(ordinary(0)).write(tmp_path / "deep" / "er" / "kept.json")
    of(ordinary(1)).write(path)
    assert os.listdir(path.parent) == ["kept.json"]
    assert_same_bits(read(path).case, ordinary(1))


@pytest.mark.parametrize("what", ["text", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_part(tmp_path, monkeypatch, what):
    """A half-written case is worse than none."""
    path = of(ordinary(0)).write(tmp_path / "kept.json")
    failing = of(ordinary(1), params={"bad": object()} if what == "text" else {})
    if what == "replace":

        def refuse(*_):
            raise OSError("disk full")

        monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises((TypeError, OSError)):
        failing.write(path)
    assert os.listdir(tmp_path) == ["kept.json"]
    assert_same_bits(read(path).case, ordinary(0))


# --- large cases


def test_a_large_case_is_kept_as_its_recipe(tmp_path):
    """A megabyte of numbers is no case for a repository."""
    case = LARGE.build()
    assert sum(getattr(case, name).size for name in AXES) > MOST_NUMBERS
    path = of(case, recipe=LARGE).write(tmp_path / "kept.json")
    assert path.stat().st_size < 3000
    got = read(path)
    assert got.recipe == LARGE
    assert_same_bits(got.case, case)


def test_a_small_case_or_one_without_recipe_is_kept_in_full(tmp_path):
    """NumPy may change its streams; numbers in a file stay."""
    for case, recipe in ((Recipe().build(), Recipe()), (LARGE.build(), None)):
        path = of(case, recipe=recipe).write(tmp_path / "kept.json")
        assert "recipe" not in json.loads(path.read_text())["case"]
        assert_same_bits(read(path).case, case)


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"steps": 71}, {"overrides": [["gate_a", 3, -50.0]]}, {"dtype": "bfloat16"}], ids=str
)
def test_a_recipe_that_builds_another_case_fails_loudly(tmp_path, change):
    """Tampered with, or built by a NumPy whose streams are others: never replayed as if it were the same."""
    path = of(LARGE.build(), recipe=LARGE).write(tmp_path / "kept.json")
    document = json.loads(path.read_text())
    document["case"]["recipe"] |= change
    path.write_text(json.dumps(document))
    text = f"{path}: its recipe no longer builds the case it did (checksum differs): do not trust it"
    with pytest.raises(KeptError, match=f"^{re.escape(text)}$"):
        read(path)


@pytest.mark.parametrize("name", AXES)
def test_the_checksum_sees_every_array(name):
    """One element, or its absence."""
    case = ordinary(0)
    array = np.array(getattr(case, name))
    array.reshape(-1)[0] += 1
    assert checksum(case.replace(**{name: array})) != checksum(case)
    if name in ("segment_pos", "h0", "dy", "dh_last"):
        assert checksum(case.replace(**{name: None})) != checksum(case)


def test_the_checksum_tells_zeros_and_shapes_apart_but_not_nans():
    """Bits count, except those of a NaN, which JSON cannot keep."""
    zeros = small([0.0, 0.0])
    assert checksum(small([-0.0, 0.0])) != checksum(zeros)
    assert checksum(zeros.take(steps=slice(0, 1))) != checksum(zeros)
    signed = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    assert checksum(small(signed)) == checksum(small([np.nan, np.nan]))


# --- files that are none


def damaged(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.update(format=2), " is no kept case of format 1"),
        (lambda d: d.pop("format"), " is no kept case of format 1"),
        (lambda d: d.pop("params"), " is not a whole kept case: KeyError: 'params'"),
        (lambda d: d.pop("case"), " is not a whole kept case: KeyError: 'case'"),
        (lambda d: d["case"].pop("h0"), " is not a whole kept case: KeyError: 'h0'"),
        (lambda d: d["case"].update(shape=[1, 2, 3]), " is not a whole kept case: ValueError: cannot reshape array"),
        (lambda d: d["case"].update(dtype="float64"), " is not a whole kept case: ValueError: dtype must be one of"),
        (lambda d: d["case"].update(a_param=["0xz"]), " is not a whole kept case: ValueError: invalid hexadecimal"),
        (lambda d: d["case"].update(a_param=[1.0]), " is not a whole kept case: TypeError: "),
        (lambda d: d["case"].update(a_param=["0x1p5000"]), " is not a whole kept case: OverflowError: "),
        (lambda d: d["case"]["segment_pos"].update(values=[[2**70, 0]]), " is not a whole kept case: OverflowError: "),
        (lambda d: d.update(case=[]), " is not a whole kept case: TypeError: "),
        (lambda d: d.update(case={"recipe": {"steps": 3}, "sha256": ""}), " is not a whole kept case: KeyError: "),
        (lambda d: d.update(case={"recipe": 3, "sha256": ""}), " is not a whole kept case: TypeError: "),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, change, text):
    """Edited by hand, merged badly, or of a later version."""
    path = of(small([1.0, 2.0], positions=np.array([0, 1]))).write(tmp_path / "kept.json")
    damaged(path, change)
    with pytest.raises(KeptError, match=f"^{re.escape(str(path) + text)}"):
        read(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", " is not JSON: "),
        (b"{", " is not JSON: "),
        (b"\xff\xfe\x00", " is not JSON: "),
        (b"[]", " is no kept case"),
    ],
)
def test_what_is_no_json_object_is_refused_by_name(tmp_path, content, text):
    """A shell's completion picks the wrong file now and then."""
    path = tmp_path / "kept.json"
    path.write_bytes(content)
    with pytest.raises(KeptError, match=f"^{re.escape(str(path) + text)}"):
        read(path)


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path):
    """With a sentence, not a traceback."""
    with pytest.raises(KeptError, match=r"no\.json: there is no such file$"):
        read(tmp_path / "no.json")
    with pytest.raises(KeptError, match=f"^{re.escape(str(tmp_path))}"):
        read(tmp_path)


# --- the recorder


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path)


def begin(recorder: Recorder, recipe: Recipe, name: str = "mine", **params):
    clause = Clause(1, CLAUSE_1, lambda trial, case: None, {}, {})
    trial = Trial(Subject(right, name, versions=lambda: {"mine": "3"}), grade="canonical")
    recorder.begin(clause, trial, recipe, recipe.build(), params)


def names(folder) -> list[str]:
    return sorted(re.sub(r"\d+\.json", "N.json", name) for name in os.listdir(folder))


def test_the_example_at_hand_is_on_disk_while_it_runs(recorder, tmp_path):
    """A kernel that takes the process down leaves it behind, ready to be replayed."""
    begin(recorder, Recipe(steps=3), cuts=[1])
    assert names(tmp_path) == ["running-N.json"]
    kept = read(recorder.running)
    assert (kept.clause, kept.test, kept.params, kept.subject) == (1, CLAUSE_1, {"cuts": [1]}, "mine")
    assert (kept.grade, kept.device, kept.verdict) == ("canonical", "cpu", "")
    assert set(kept.versions) == {"python", "numpy", "torch", "triton", "mine"}
    assert_same_bits(kept.case, Recipe(steps=3).build())
    recorder.end()
    assert names(tmp_path) == []
    assert recorder.keep() is None


def test_a_failing_example_stays_and_gets_the_name_of_its_content(recorder, tmp_path, monkeypatch):
    """Each smaller one replaces it; the last one is the one that is shown."""
    monkeypatch.chdir(tmp_path)
    for steps in (9, 4):
        begin(recorder, Recipe(steps=steps))
        recorder.failed(AssertionError(f"wrong at {steps}"))
        assert names(tmp_path) == ["failing-N.json"]
    begin(recorder, Recipe(steps=2))
    assert names(tmp_path) == ["failing-N.json", "running-N.json"]
    recorder.end()
    line = recorder.keep()
    (name,) = os.listdir(tmp_path)
    assert line.startswith(f"cd {ROOT} && python -m fuzz replay ")  # typed elsewhere than in the checkout
    assert line.endswith(name)
    kept = read(tmp_path / name)
    assert (kept.found_name, kept.verdict, kept.case.shape) == (name, "wrong at 4", (1, 4, 1))


def test_two_subjects_do_not_take_each_others_file(recorder, tmp_path):
    """The same case on two subjects is two finds."""
    for name in ("mine", "yours"):
        begin(recorder, Recipe(steps=2), name=name)
        recorder.failed(AssertionError(f"{name} is wrong"))
        recorder.keep()
    assert {read(tmp_path / name).subject for name in os.listdir(tmp_path)} == {"mine", "yours"}


def test_two_processes_do_not_touch_each_others_files(tmp_path, monkeypatch):
    """Workers of one run share the folder."""
    recorders = []
    for process in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        recorders.append(Recorder(tmp_path))
        begin(recorders[-1], Recipe(steps=process))
    assert sorted(os.listdir(tmp_path)) == ["running-1.json", "running-2.json"]
    recorders[0].failed(AssertionError("wrong"))
    recorders[1].end()
    assert os.listdir(tmp_path) == ["failing-1.json"]
    begin(recorders[1], Recipe(steps=1))
    recorders[1].failed(AssertionError("wrong"))
    assert recorders[0].keep() == recorders[1].keep()
    assert len(os.listdir(tmp_path)) == 1


# --- commands


@pytest.fixture
def found(tmp_path, request):
    """Keep a case, found on this run's device, in a file; its path."""

    def keep(drawn: Recipe, **fields) -> str:
        kept = of(drawn.build(), device=request.config.stash[DEVICE], **fields)
        return str(kept.write(tmp_path / kept.file_name))

    return keep


SHOWS = Recipe(steps=2, width=2, decay="typical")


def test_replaying_says_what_and_holds_or_fails(found, capsys, request):
    """0 and 1, with the clause, the subject and the verdict."""
    head = f"clause 1, {CLAUSE_1}\nsubject {{}}, accurate grade, {request.config.stash[DEVICE]}\n"
    file = found(SHOWS)
    assert command.main(["replay", file]) == 0
    assert re.fullmatch(re.escape(head.format(RIGHT)) + r"holds, worst ratio \S+\n", capsys.readouterr().out)
    assert command.main(["replay", file, "--subject", WRONG]) == 1
    assert capsys.readouterr().out.startswith(head.format(WRONG) + "y: DEVIATES, worst ratio ")


def test_replaying_runs_the_clause_with_its_params(found):
    """Cuts are where this fault is, and only there."""
    subject = "properties.mutants.plain:single_token_ignores_h0"
    recipe = replace(SHOWS, steps=4)
    assert command.main(["replay", found(recipe, clause=3, test=CLAUSE_3, params={"cuts": []}, subject=subject)]) == 0
    assert command.main(["replay", found(recipe, clause=3, test=CLAUSE_3, params={"cuts": [3]}, subject=subject)]) == 1


def test_replaying_in_another_grade_judges_in_that_grade(found):
    """1 - exp(2 L) near a = 1: canonical, and no more."""
    recipe = Recipe(decay="slow", gates="closed", steps=8, width=8)
    file = found(recipe, subject="properties.mutants.plain:one_minus_exp")
    assert command.main(["replay", file]) == 1
    assert command.main(["replay", file, "--grade", "canonical"]) == 0


def test_replaying_bit_for_bit_clauses_says_so(found, capsys):
    """They have no ratio."""
    test = "test_only_zero_in_segment_pos_matters"
    params = {"positions": [-1], "beyond": 2**32}
    assert command.main(["replay", found(replace(SHOWS, resets="dense"), clause=9, test=test, params=params)]) == 0
    assert capsys.readouterr().out.endswith("holds, bit for bit\n")


@pytest.mark.parametrize(
    ("promise", "recipe", "test", "reason"),
    [
        ("resets=False", SHOWS, "test_only_zero_in_segment_pos_matters", "segment_pos"),
        ("dtypes=('float16',)", SHOWS, CLAUSE_1, "dtype float32"),
        ("min_length=3", SHOWS, CLAUSE_1, "length 2"),
    ],
)
def test_replaying_what_is_not_promised_is_no_success(found, tmp_path, capsys, promise, recipe, test, reason):
    """3: nothing was judged."""
    subject = tmp_path / "subject.py"
    subject.write_text(
        f"from kernels.subjects import Subject\nfrom properties.mutants.plain import right\n"
        f"SUBJECT = Subject(right, 'f', {promise})\n"
    )
    params = {"positions": [1], "beyond": 2**32} if test != CLAUSE_1 else {}
    number = CONTRACT[test].number
    file = found(recipe, clause=number, test=test, params=params, subject=f"{subject}:SUBJECT")
    assert command.main(["replay", file]) == 3
    assert capsys.readouterr().out.endswith(f"\nnot promised: {reason}\n")


def test_what_was_found_on_a_subject_is_asked_anyway(found, tmp_path, capsys):
    """A limit is no failure, but whoever meets it wants to know what happens."""
    subject = tmp_path / "subject.py"
    subject.write_text(
        "from kernels.subjects import Subject\nfrom properties.mutants.plain import right\n"
        "def refusing(*inputs, **more):\n    raise ValueError('width')\n"
        "SUBJECT = Subject(refusing, 'f', width_multiple=4)\nOTHER = Subject(right, 'f', width_multiple=4)\n"
    )
    file = found(SHOWS, subject=f"{subject}:SUBJECT", verdict="not promised: width 2; asked anyway: ...")
    assert command.main(["replay", file]) == 3
    asked = "not promised: width 2; asked anyway: the subject raised ValueError: width\n"
    assert f"\n{asked}" in (out := capsys.readouterr().out)
    assert out.endswith(f"\n  File \"{subject}\", line 4, in refusing\n    raise ValueError('width')\n")
    assert command.main(["replay", file, "--subject", f"{subject}:OTHER"]) == 3
    assert capsys.readouterr().out.endswith("\nnot promised: width 2\n")


def test_a_corpus_knows_what_failed_on_a_subject(corpus):
    """By clause, test and subject, and only what has a verdict."""
    wanted = of(ordinary(0), subject="mine", verdict="y: DEVIATES")
    for kept in (
        wanted,
        replace(wanted, case=ordinary(1), subject="other"),
        replace(wanted, case=ordinary(2), verdict=""),
        replace(wanted, case=ordinary(3), test="test_every_size_is_right"),
    ):
        kept.write(corpus / "1" / kept.file_name)
    (found,) = found_on("mine", 1, CLAUSE_1)
    assert_same_bits(found.case, ordinary(0))
    assert found_on("mine", 2, CLAUSE_1) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"subject": "nonsense"}, "no subject is called 'nonsense'"),
        ({"test": "test_of_a_later_version"}, "there is no clause test 'test_of_a_later_version' in this version"),
        ({"params": {"nonsense": 1}}, ""),
        ({"grade": "best"}, "grade must be one of accurate, canonical; got 'best'"),
    ],
    ids=["subject", "clause", "params", "grade"],
)
def test_what_cannot_be_replayed_ends_with_4_and_a_sentence(found, capsys, fields, text):
    """Not with 1, which says that the clause fails."""
    assert command.main(["replay", found(SHOWS, **fields)]) == 4
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {text}")
    assert printed.out == ""


def test_replaying_where_nothing_can_be_judged_is_no_success(found, capsys):
    """Whatever stands there would pass."""
    one = np.ones((1, 1, 1))
    case = Case(x=2.0**127 * one, gate_x=9 * one, gate_a=9 * one, a_param=[0], h0=2.0**127 * one[0])
    drawn = SimpleNamespace(build=lambda: case)
    for name in ("replay", "minimize"):
        assert command.main([name, found(drawn)]) == (3 if name == "replay" else 4)
    printed = capsys.readouterr()
    assert "\nnothing judged: none of 2 elements has a bound, or float32 may overflow there\n" in printed.out
    assert "does not fail: nothing judged" in printed.err


@pytest.mark.parametrize("what", ["replay", "keep"])
def test_a_file_that_is_none_ends_with_4(tmp_path, capsys, what):
    """Both commands read it first."""
    for path in (tmp_path / "no.json", tmp_path):
        assert command.main([what, str(path)]) == 4
        assert capsys.readouterr().err.startswith(f"error: {path}")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A corpus of this test's own."""
    folder = tmp_path / "cases"
    monkeypatch.setattr(keeping, "CASES", folder)
    monkeypatch.setattr(command, "CASES", folder, raising=False)
    return folder


@pytest.mark.parametrize("recipe", [SHOWS, LARGE], ids=["in full", "as a recipe"])
def test_keeping_moves_a_case_to_its_clause(found, corpus, capsys, recipe):
    """By the name of its content, whatever the file was called, and unchanged."""
    file = Path(found(recipe, recipe=recipe, verdict="y: DEVIATES"))
    written = file.read_text()
    renamed = file.rename(file.with_name("running-1.json"))
    assert command.main(["keep", str(renamed)]) == 0
    target = corpus / "1" / file.name
    assert capsys.readouterr().out == f"{target}\n"
    assert target.read_text() == written
    assert not renamed.exists()


def test_keeping_what_is_kept_already_does_not_lose_it(found, corpus):
    """A second `keep` of the same line, or of a file of the corpus, is harmless."""
    assert command.main(["keep", found(SHOWS)]) == 0
    (target,) = corpus.rglob("*.json")
    assert command.main(["keep", str(target)]) == 0
    assert target.exists()
    assert command.main(["keep", found(SHOWS)]) == 0
    assert list(corpus.rglob("*.json")) == [target]
