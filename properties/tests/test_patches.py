"""Patched kernels: every patch fits, the copy that is judged has the fault, and the original has not."""

import functools
import sys
from dataclasses import replace

import pytest

from conftest import DEVICE
from kernels.subjects import load
from properties.contract import CONTRACT
from properties.mutants.chunked_faults import CHUNKED
from properties.mutants.kill import first_kill, kill_by, kills
from properties.mutants.patch import KERNELS, PLACES, Patch, PatchError, import_copy, patched
from properties.mutants.patches import PATCHES
from properties.mutants.plain import WRONG
from properties.mutants.serial_faults import SERIAL

CLAUSE_1 = "test_y_and_h_last_lie_within_their_bounds"
CLAUSE_14 = "test_a_long_memory_is_carried_over_every_border"
FITS = Patch("fits", "C is 9.", "cell.py", "C = tl.constexpr(8.0)", "C = tl.constexpr(9.0)")


@pytest.mark.parametrize("name", PATCHES)
def test_every_patch_fits_the_source(name):
    """A patch that does not fit any more would be a mutant that is not one: after a change to a kernel, mend it."""
    patch = PATCHES[name]
    text = (KERNELS / patch.file).read_text()
    assert patch.apply(text) != text
    assert (patch.name, patch.shows in PLACES, patch.fault[-1]) == (name, True, ".")


def test_no_mutant_has_the_name_of_another():
    """A report names them."""
    assert len(PATCHES) == len(SERIAL) + len(CHUNKED)
    assert not set(PATCHES) & set(WRONG)
    faults = {(patch.subject, patch.file, patch.old, patch.new) for patch in PATCHES.values()}
    assert len(faults) == len(PATCHES)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"old": "nowhere"}, "cell.py holds its old text 0 times, not once"),
        ({"old": "tl.constexpr"}, r"cell.py holds its old text \d+ times, not once"),
        ({"new": FITS.old}, "changes nothing"),
        ({"file": "missing.py"}, "there is no kernels/missing.py"),
    ],
)
def test_a_patch_that_does_not_fit_is_an_error(change, text):
    """Never a mutant that survives for want of a fault."""
    with pytest.raises(PatchError, match=text):
        patched(replace(FITS, **change))


@pytest.mark.parametrize("name", ["serial", "chunked", "three-pass"])
def test_a_copy_without_a_patch_is_right(name, request):
    """What convicts a mutant is its fault, not the copying."""
    subject, package = load(name), f"kernels_with_nothing_{name.replace('-', '_')}"
    copy = import_copy(package)
    assert isinstance(subject.function, functools.partial)
    assert copy.rglru is not subject.function.func
    assert copy.rglru.__module__ == f"{package}.operator"
    same = replace(subject, function=functools.partial(copy.rglru, **subject.function.keywords))
    for test in (CLAUSE_1, "test_every_gradient_lies_within_its_bound"):
        assert kill_by(CONTRACT[test], same, seed=0, examples=10, device=request.config.stash[DEVICE]) is None


def test_a_patched_copy_is_convicted_and_the_kernels_are_not(request):
    """The mutant and the kernels live beside one another."""
    chosen = request.config.stash[DEVICE]
    options = {"seed": 0, "examples": 10, "device": chosen}
    kill = kill_by(CONTRACT[CLAUSE_1], patched(SERIAL["c_is_7_999"]), **options)
    assert kill is not None
    assert "DEVIATES" in kill.text
    assert kill.case is not None
    assert kill_by(CONTRACT[CLAUSE_1], load("serial"), **options) is None
    assert sys.modules["kernels_with_c_is_7_999.cell"].C.value == 7.999
    assert sys.modules["kernels.cell"].C.value == 8.0


def test_a_patch_is_put_into_the_subject_that_it_names(request):
    """A fault of the chunks would survive in the serial kernels, which have none."""
    subject = patched(PATCHES["group_sends_its_start"])
    assert isinstance(subject.function, functools.partial)
    assert subject.function.keywords == load("chunked").function.keywords
    kill = kill_by(CONTRACT[CLAUSE_14], subject, seed=0, examples=10, device=request.config.stash[DEVICE])
    assert kill is not None
    assert "DEVIATES" in kill.text


def test_a_chunk_that_was_guessed_wrong_is_loaded_again(request):
    """Blocks start nearly in order, so no run shows it: here every program guesses the chunk after its own."""
    place = "return program // chains, chain"
    wrong = Patch("guesses_wrong", "", "chunked.py", place, "return program // chains + 1, chain", subject="chunked")
    chosen = request.config.stash[DEVICE]
    for test in (CLAUSE_1, "test_every_gradient_lies_within_its_bound"):
        assert kill_by(CONTRACT[test], patched(wrong), seed=0, examples=10, device=chosen) is None


def test_what_a_gpu_found_is_found_here(request):
    """A NaN of a later step in an earlier one: decay * 0 + 1 as the neutral element."""
    subject = patched(SERIAL["nan_in_the_neutral_element"])
    chosen = request.config.stash[DEVICE]
    tests = ("test_later_tokens_never_change_earlier_outputs", "test_non_finite_values_show_where_the_definition_says")
    assert any(kill_by(CONTRACT[test], subject, seed=0, examples=50, device=chosen) for test in tests)


def test_a_kill_counts_the_examples_up_to_the_first_failure():
    """Not the ones that Hypothesis repeats afterwards."""
    from kernels.subjects import Subject

    seen = []

    def wrong_at_last(x, *gates, segment_pos=None, h0=None):
        seen.append(x)
        y, h_last = WRONG["c_is_7_99"](x, *gates, segment_pos=segment_pos, h0=h0)
        return y, h_last

    kill = next(kills(Subject(wrong_at_last, "wrong"), seed=0, examples=20))
    assert 1 <= kill.examples <= len(seen)
    assert (kill.clause.number, first_kill(wrong_at_last, seed=0, examples=20)) == (1, (kill.clause, kill.text))
