"""The benchmark's plot from its file alone: what is drawn, what is said below it, and that it is written."""

import copy
import json
import sys

import pytest

from kernels.bench import plot
from kernels.bench.setting import KINDS


def row(subject, forward, backward, wrong=None):
    """As the benchmark writes it; None where there is no time, or no rank."""
    percents = {"forward": forward, "inference": forward, "backward": backward}
    return {"subject": subject, "wrong": wrong, "measurements": {k: {"percent_of_copy": percents[k]} for k in KINDS}}


def setting(shape, *rows, dtype="bfloat16", resets="1/512"):
    return {"shape": shape, "dtype": dtype, "resets": resets, "copy": {"gb_per_s": 4250.4}, "rows": rows}


def run_of(*settings):
    """A file of the benchmark."""
    return {
        "format": 1,
        "device": {"name": "a device"},
        "versions": {"commit": "0123456789abcdef-dirty", "torch": "2.11", "triton": "3.6"},
        "date": "2026-11-30T12:00:00+00:00",
        "settings": list(settings),
    }


RUN = run_of(
    setting([1, 2048, 4], row("serial", 40.0, 30.0), row("chunked", 60.0, 50.0)),
    setting([1, 512, 4], row("serial", 10.0, 5.0), row("chunked", 20.0, None)),
    setting([2, 512, 2], row("three-pass", 15.0, 12.0)),
    setting([3, 512, 4], row("fattori", None, None, wrong="dx[0, 1, 2] is 3, should be 4"), row("serial", 80.0, 70.0)),
)


def test_a_line_is_a_subject_over_t_in_a_panel_of_chains_and_kind():
    """In the order of T, whatever the order of measurement; B and D count by their product."""
    found = plot.points([RUN])
    assert found[4, "forward"] == {
        "serial": [(512, 10.0), (2048, 40.0)],
        "chunked": [(512, 20.0), (2048, 60.0)],
        "three-pass": [(512, 15.0)],
    }
    assert found[4, "backward"]["chunked"] == [(2048, 50.0)]
    assert set(found) == {(chains, kind) for chains in (4, 12) for kind in KINDS}


def test_what_is_wrong_is_not_drawn_and_named_below():
    """A fast wrong kernel must not look fast."""
    assert set(plot.points([RUN])[12, "forward"]) == {"serial"}
    assert plot.caption([RUN]).splitlines()[-1] == "not drawn where it is WRONG: fattori"


def test_the_caption_says_device_protocol_date_and_commit():
    """A picture travels without its file; a dirty checkout stays dirty when its hash is cut."""
    text = plot.caption([RUN])
    assert text.startswith("a device; bfloat16, resets 1/512\n")
    assert "4250 to 4250 GB/s" in text
    assert "2026-11-30, commit 0123456789ab-dirty, torch 2.11, triton 3.6" in text
    released = copy.deepcopy(RUN)
    released["versions"]["commit"] = None
    assert "commit unknown, torch" in plot.caption([released])


def test_files_are_drawn_together_and_the_later_measurement_counts():
    """The eager loop may be measured on another day, and a kernel again."""
    later = run_of(setting([1, 2048, 4], row("serial", 45.0, 35.0), row("eager", 1.0, 1.0)))
    found = plot.points([RUN, later])[4, "forward"]
    assert found["serial"] == [(512, 10.0), (2048, 45.0)]
    assert found["eager"] == [(2048, 1.0)]


def test_lines_say_what_else_differs():
    """float32 and bfloat16 of one subject are two lines, and so are resets and none."""
    other = run_of(setting([1, 512, 4], row("serial", 45.0, 35.0), dtype="float32", resets="0"))
    assert set(plot.points([RUN, other])[4, "forward"]) == {
        "serial, bfloat16, resets 1/512",
        "chunked, bfloat16, resets 1/512",
        "three-pass, bfloat16, resets 1/512",
        "serial, float32, no resets",
    }


@pytest.mark.parametrize("suffix", plot.FORMATS)
def test_a_picture_is_written_from_a_file_without_a_gpu(suffix, tmp_path):
    """Measured where the GPU is, drawn where matplotlib is."""
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "run.json", tmp_path / f"out{suffix}"
    file.write_text(json.dumps(RUN))
    assert plot.main([str(file), str(picture)]) == 0
    assert picture.stat().st_size > 5000


def test_axes_have_names_units_and_a_logarithmic_t(tmp_path, monkeypatch):
    """Readable alone: log2 T, % of a copy, a panel a kind, one legend entry a subject."""
    figure = pytest.importorskip("matplotlib.figure")
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    plot.draw([RUN], "out.png")
    panels = drawn[0].axes
    assert [axis.get_title() for axis in panels[:3]] == list(plot.TITLES.values())
    assert panels[0].get_ylabel() == "B D = 4\n% of copy bandwidth"
    assert panels[3].get_xlabel() == "T (steps)"
    assert panels[0].get_xscale() == "log"
    assert panels[0].get_ylim()[0] == 0
    assert [tick.get_text() for tick in panels[3].get_xticklabels()] == ["512", "2Ki"]
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["serial", "chunked", "three-pass"]
    assert len({(line.get_color(), line.get_marker()) for line in panels[0].lines}) == 3


def test_nothing_to_plot_is_a_sentence():
    """An empty picture would say that everything is slow."""
    with pytest.raises(ValueError, match="nothing to plot: no subject was timed and right"):
        plot.draw([run_of(setting([1, 2, 3], row("serial", None, None)))], "out.png")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "settings": [1]}', '{"format": 1, "settings": []}'])
def test_another_file_is_refused_with_a_sentence(text, tmp_path, capsys):
    """The path of a picture given first, say."""
    pytest.importorskip("matplotlib")
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(SystemExit) as exit:
        plot.main([str(file), str(tmp_path / "out.png")])
    assert exit.value.code == 2
    assert str(file) in capsys.readouterr().err
    with pytest.raises(SystemExit):
        plot.main(["no/such.json", str(tmp_path / "out.png")])
    assert "no/such.json was not written by python -m kernels.bench --json" in capsys.readouterr().err


def test_without_matplotlib_it_says_how_to_go_on(monkeypatch):
    """Before anything is measured: the GPU's machine may lack it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"python -m kernels[.]bench[.]plot FILE out[.]png"):
        plot.check("out.png")


def test_a_folder_that_is_missing_is_refused():
    """Before a minute of measuring, not after."""
    with pytest.raises(ValueError, match=r"there is no folder for 'no/such/out[.]png'"):
        plot.check("no/such/out.png")
