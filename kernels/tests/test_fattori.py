"""The checkout of hawk-pytorch: only the pinned one is judged without leave, and whatever is judged says what it is."""

import importlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from kernels.subjects import SubjectError, Unavailable, load
from kernels.subjects.run import Misbehaviour, run
from oracle.tests.cases import ordinary

FAKE = {
    "hawk/__init__.py": "",
    "hawk/scan_fused.py": "def fused_linear_scan(x, gate_x, gate_a, p):\n    return x + 2 * gate_x + 3 * gate_a\n",
    "hawk/external.py": "class BlockDiagonalLinear:\n    pass\n",
}
NAMES = ("HAWK_PYTORCH", "HAWK_PYTORCH_UNPINNED")


class Repository:
    """A throw-away repository with a package of the same name."""

    def __init__(self, folder):
        self.folder = folder
        for name, text in FAKE.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        self.git("init", "-q")
        self.commit = self.commit_all()

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(self.folder), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit_all(self) -> str:
        self.git("add", ".")
        self.git("commit", "-q", "-m", "fake")
        return self.git("rev-parse", "HEAD")


@pytest.fixture(autouse=True)
def unloaded(monkeypatch):
    """No variable is set, and the subject's module is loaded afresh."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "kernels.subjects.fattori", raising=False)
    yield
    sys.modules.pop("kernels.subjects.fattori", None)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    repository = Repository(tmp_path)
    monkeypatch.setenv("HAWK_PYTORCH", str(tmp_path))
    return repository


def unpinned(monkeypatch):
    monkeypatch.setenv("HAWK_PYTORCH_UNPINNED", "1")


def refusal() -> str:
    with pytest.raises(SubjectError) as caught:
        load("fattori")
    assert not isinstance(caught.value, Unavailable)
    return str(caught.value)


def pinned_at(monkeypatch, commit: str):
    """The subject's module, with another pin: nobody can make a commit of a given hash."""
    unpinned(monkeypatch)
    module = importlib.import_module("kernels.subjects.fattori")
    monkeypatch.delenv("HAWK_PYTORCH_UNPINNED")
    monkeypatch.setattr(module, "PIN", commit)
    return module


def test_without_the_variable_it_is_unavailable_and_says_how_to_get_it():
    """Clone, check out, set: in one sentence."""
    with pytest.raises(Unavailable) as caught:
        load("fattori")
    assert re.fullmatch(
        r"fattori needs a checkout of hawk-pytorch, which is not there: git clone https://\S+/fattorib/hawk-pytorch, "
        r"git checkout e43239336cf93b6dd79486447150429e472a4b90 in it, and set HAWK_PYTORCH to its folder",
        str(caught.value),
    )


def test_without_what_the_checkout_imports_it_is_unavailable(repository, monkeypatch):
    """Otherwise every call fails in the other process, and looks like a fault of the kernel."""
    unpinned(monkeypatch)
    monkeypatch.setitem(sys.modules, "einops", None)
    with pytest.raises(Unavailable, match=r"^fattori needs the package 'einops', which is not installed$"):
        load("fattori")


@pytest.mark.parametrize("where", ["nowhere", "empty", "other"])
def test_what_is_no_checkout_is_refused(tmp_path, monkeypatch, where):
    """Set wrongly is no reason to skip in silence."""
    folder = tmp_path / where
    if where != "nowhere":
        folder.mkdir()
    if where == "other":
        subprocess.run(["git", "-C", str(folder), "init", "-q"], check=True)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("HAWK_PYTORCH", str(folder))
    assert refusal().startswith(
        "HAWK_PYTORCH must name a git checkout of https://github.com/fattorib/hawk-pytorch; in "
        f"{str(folder)!r}, git says: fatal: "
    )


@pytest.mark.parametrize("leave", [False, True])
def test_a_folder_within_the_checkout_is_refused_and_the_root_is_named(repository, monkeypatch, leave):
    """git finds the files' names from the root, and would say of a folder that they are not there."""
    if leave:
        unpinned(monkeypatch)
    monkeypatch.setenv("HAWK_PYTORCH", str(repository.folder / "hawk"))
    assert refusal() == (
        f"HAWK_PYTORCH must name the root of the checkout: set it to {str(repository.folder)!r}, not to 'hawk' in it"
    )


def test_another_commit_is_refused_without_leave(repository):
    """Figures of one commit must not be shown as those of another."""
    assert refusal() == (
        f"HAWK_PYTORCH names commit {repository.commit} of hawk-pytorch, not the pinned one: git checkout "
        f"e43239336cf93b6dd79486447150429e472a4b90 in {str(repository.folder)!r}, or set HAWK_PYTORCH_UNPINNED=1 to "
        "judge what is there, shown as unpinned"
    )


@pytest.mark.parametrize("value", ["0", "yes", ""])
def test_leave_is_given_by_1_alone(repository, monkeypatch, value):
    """As in the sentence above."""
    monkeypatch.setenv("HAWK_PYTORCH_UNPINNED", value)
    assert "not the pinned one" in refusal()


def test_an_unpinned_checkout_says_so_wherever_it_is_shown(repository, monkeypatch):
    """In the versions, which go into every kept case, and in the title, which every report shows."""
    unpinned(monkeypatch)
    subject = load("fattori")
    blobs = {f: repository.git("rev-parse", f"HEAD:{f}") for f in ("hawk/scan_fused.py", "hawk/external.py")}
    assert subject.versions() == {"hawk-pytorch": f"unpinned {repository.commit}", **blobs}
    short = [blob[:12] for blob in blobs.values()]
    assert subject.title == (
        f"fattori (hawk-pytorch unpinned {repository.commit[:12]}, hawk/scan_fused.py {short[0]}, "
        f"hawk/external.py {short[1]})"
    )


def test_the_pinned_commit_needs_no_leave_and_a_change_in_it_does(repository, monkeypatch):
    """A changed file is no more the pinned one than another commit is."""
    module = pinned_at(monkeypatch, repository.commit)
    assert module.checkout().versions["hawk-pytorch"] == repository.commit
    unpinned(monkeypatch)
    assert module.checkout().versions["hawk-pytorch"] == repository.commit, "the leave was not needed"
    monkeypatch.delenv("HAWK_PYTORCH_UNPINNED")
    (repository.folder / "notes.txt").write_text("beside it, untracked")
    (repository.folder / "hawk" / "scan_fused.py").write_text(FAKE["hawk/scan_fused.py"] + "# changed\n")
    with pytest.raises(
        SubjectError, match=f"names commit {repository.commit} with changes of hawk-pytorch, not the pi"
    ):
        module.checkout()
    unpinned(monkeypatch)
    versions = module.checkout().versions
    assert versions["hawk-pytorch"] == f"unpinned {repository.commit} with changes"
    assert versions["hawk/scan_fused.py"] != repository.git("rev-parse", "HEAD:hawk/scan_fused.py")


def test_the_checkouts_own_function_is_called_elsewhere(repository, monkeypatch):
    """In another process, with the logits in its order of arguments, and never with what it does not take."""
    unpinned(monkeypatch)
    subject = load("fattori")
    case = ordinary(0, dtype="bfloat16").replace(segment_pos=None, h0=None, dy=None, dh_last=None)
    result = run(subject, case)
    assert result.h_last is None
    np.testing.assert_allclose(result.y, case.x + 2 * case.gate_x + 3 * case.gate_a, rtol=0, atol=0.1)
    assert "hawk" not in sys.modules
    assert subject.direct is sys.modules["kernels.subjects.fattori"].scan
    for name, array in (("segment_pos", np.ones(case.shape[:2], np.int64)), ("h0", np.ones(case.x[:, 0].shape))):
        with pytest.raises(Misbehaviour, match=f"^the subject raised TypeError: fused_linear_scan takes no {name}\n"):
            run(subject, case.replace(**{name: array}))


def test_a_package_of_the_same_name_is_refused(repository, monkeypatch, tmp_path_factory):
    """One that is installed would be judged under the checkout's name."""
    other = Repository(tmp_path_factory.mktemp("other"))
    installed = types.ModuleType("hawk")
    installed.__path__ = [str(other.folder / "hawk")]
    monkeypatch.setitem(sys.modules, "hawk", installed)
    for name in ("hawk.scan_fused", "hawk.external"):
        monkeypatch.setitem(sys.modules, name, None)  # to be taken back
        del sys.modules[name]
    unpinned(monkeypatch)
    module = importlib.import_module("kernels.subjects.fattori")
    with pytest.raises(ImportError, match=r"^hawk\.scan_fused was imported from .*, not from the checkout "):
        module.hawk()
