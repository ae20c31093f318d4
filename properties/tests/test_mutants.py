"""Honest functions pass every clause; that the wrong ones are convicted is seen in fuzz/tests/test_smallest.py."""

import inspect

import pytest

from properties.mutants.honest import HONEST
from properties.mutants.kill import first_kill
from properties.mutants.plain import FLOAT32_ONLY, LOW_PRECISION_ONLY, WRONG, right

SEED = 1


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_function_is_never_convicted(name):
    """Another association, another formula, another chunk: whatever rounds honestly lies within its bounds."""
    assert first_kill(HONEST[name], seed=SEED, examples=10) is None


def test_the_function_that_the_faults_are_put_into_is_honest():
    """Otherwise the wrong ones could be convicted of something else than their fault."""
    assert first_kill(right, seed=SEED, examples=10) is None


@pytest.mark.parametrize("name", [*WRONG, *HONEST])
def test_every_function_says_what_it_does(name):
    """Its docstring is its line in a report, its signature that of a subject."""
    function = (WRONG | HONEST)[name]
    assert function.__name__ == name
    assert function.__doc__.endswith(".")
    assert "\n" not in function.__doc__
    parameters = inspect.signature(function).parameters
    assert list(parameters) == ["x", "gate_x", "gate_a", "a_param", "segment_pos", "h0"]


def test_faults_of_some_dtypes_only_are_on_the_list():
    """A name that is misspelt there would exempt nothing."""
    assert set(WRONG) >= LOW_PRECISION_ONLY | FLOAT32_ONLY
    assert not LOW_PRECISION_ONLY & FLOAT32_ONLY
    assert not set(WRONG) & set(HONEST)
