"""The corpus, replayed: what failed once, and a hand-made minimal case of every clause."""

from pathlib import Path

import pytest

from conftest import DEVICE
from fuzz.kept import CASES, read
from fuzz.replay import replay
from kernels.subjects import PRODUCTION, Unavailable, load
from properties.clauses import CONTRACT

FILES = sorted(CASES.rglob("*.json"))
NAMES = [str(path.relative_to(CASES)) for path in FILES]


FOREIGN = [path for path in FILES if (kept := read(path)).verdict and kept.subject not in PRODUCTION]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
@pytest.mark.parametrize("subject", PRODUCTION)
def test_a_kept_case_holds_on_the_production_kernels(path: Path, subject: str, request):
    """Whatever failed once, on our kernels or on others', holds on ours in the accurate grade."""
    outcome = replay(read(path), subject=subject, grade="accurate", device=request.config.stash[DEVICE])
    assert outcome.promised, outcome.text
    assert outcome.holds, outcome.text


@pytest.mark.parametrize("path", FOREIGN, ids=lambda path: path.stem)
def test_a_case_found_on_another_subject_still_fails_there(path: Path, request):
    """A deviation that is gone is news: the case then belongs to nobody's ledger."""
    kept = read(path)
    try:
        load(kept.subject)
    except Unavailable as error:
        pytest.skip(str(error))
    assert not replay(kept, device=request.config.stash[DEVICE]).holds


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_kept_case_is_named_by_its_content(path: Path):
    """A case that was edited by hand is another case, and says so."""
    kept = read(path)
    assert path == CASES / str(kept.clause) / kept.file_name


def test_every_clause_has_a_case():
    """The corpus starts with one minimal case for every test of the contract."""
    assert {read(path).test for path in FILES} == set(CONTRACT)
