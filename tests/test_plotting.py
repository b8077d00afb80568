"""Plotting: readable on both themes, told apart without colour, and the same text every time."""

from __future__ import annotations

import io
import itertools

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb

mpl.use("agg")
import matplotlib.pyplot as plt

from linear_icl import plotting, theory

LINEAR_RGB_TO_LMS = np.array(
    [[0.31399, 0.63951, 0.04650], [0.15537, 0.75789, 0.08670], [0.01775, 0.10945, 0.87257]]
)


@pytest.fixture
def ax():
    with mpl.rc_context():
        plotting.use_style()
        figure, axes = plt.subplots()
        yield axes
        plt.close(figure)


def linear(color):
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def luminance(color):
    return linear(color) @ [0.2126, 0.7152, 0.0722]


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def extents(ax):
    ax.figure.canvas.draw()
    return [text.get_window_extent() for text in ax.texts]


@pytest.mark.parametrize("method", plotting.METHODS.values(), ids=plotting.METHODS)
def test_every_method_stands_out_from_the_panel_enough_for_text(method):
    assert contrast(method.color, plotting.PANEL) >= 4.5


def test_guides_and_ink_stand_out_enough_for_text():
    assert contrast(plotting.GUIDE, plotting.PANEL) >= 4.5
    assert contrast(plotting.INK, plotting.PANEL) >= 7


def test_no_two_methods_share_a_marker_or_both_colour_and_line():
    for a, b in itertools.combinations(plotting.METHODS.values(), 2):
        assert a.marker != b.marker
        assert (a.color, str(a.linestyle)) != (b.color, str(b.linestyle))
        assert a.label != b.label


def test_the_methods_of_the_main_figure_differ_for_dichromats_too():
    # Viénot, Brettel and Mollon (1999): the missing cone's signal is a mix of the other two.
    to_lms, names = LINEAR_RGB_TO_LMS, ("gd", "cg", "gd++", "eagle", "qr")
    protan = np.array([[0, 1.0518, -0.0512], [0, 1, 0], [0, 0, 1]])
    deutan = np.array([[1, 0, 0], [0.9513, 0, 0.0487], [0, 0, 1]])
    for cone in (np.eye(3), protan, deutan):
        seen = [
            np.linalg.inv(to_lms) @ cone @ to_lms @ linear(plotting.METHODS[n].color) for n in names
        ]
        lightness = [np.cbrt(np.clip(rgb, 0, 1)) for rgb in seen]
        for (i, a), (j, b) in itertools.combinations(enumerate(lightness), 2):
            assert np.linalg.norm(a - b) > 0.09, (names[i], names[j])


def test_no_text_is_smaller_than_twelve_points_and_the_panel_is_opaque(ax):
    plotting.error_curves(ax, {"gd": [1, 0.1], "eagle": [1, 1e-9]})
    plotting.slope_guide(ax, (0.5, 1e-3), -1)
    for text in ax.figure.findobj(mpl.text.Text):
        assert text.get_fontsize() >= 12 or not text.get_text()
    picture = io.BytesIO()
    ax.figure.savefig(picture, format="png")
    picture.seek(0)
    pixels = plt.imread(picture)
    assert pixels.shape[1] == 1080
    assert (pixels[..., 3] == 1).all()
    assert pixels[0, 0, :3] == pytest.approx(to_rgb(plotting.PANEL), abs=0.005)


def test_each_curve_is_named_once_at_its_end_and_no_names_overlap(ax):
    steps = np.arange(12)
    curves = {name: 10.0 ** -(steps * 0.6) for name in plotting.METHODS}
    plotting.error_curves(ax, curves)
    assert [t.get_text() for t in ax.texts] == [m.label for m in plotting.METHODS.values()]
    for a, b in itertools.combinations(extents(ax), 2):
        assert not a.overlaps(b)
    assert ax.get_legend() is None
    assert ax.get_xlabel() == "iteration"
    assert ax.get_yscale() == "log"


def test_curves_wear_the_look_of_their_method(ax):
    plotting.error_curves(ax, {"eagle": [1, 0.1, 0.01]}, labels={"eagle": "EAGLE, float32"})
    (line,) = ax.lines
    method = plotting.METHODS["eagle"]
    assert (line.get_color(), line.get_marker()) == (method.color, method.marker)
    assert ax.texts[0].get_text() == "EAGLE, float32"


def test_what_a_logarithm_cannot_show_is_left_out(ax):
    curves = {"gd": ([0.0, 1.0, 2.0, 3.0], [1, 0.1, 0.0, np.nan]), "cg": [0.0, np.inf]}
    plotting.error_curves(ax, curves, xscale="log")
    (line,) = ax.lines
    assert line.get_xdata().tolist() == [1]
    assert len(ax.texts) == 1


def test_limits_set_before_are_kept_and_names_stay_inside_them(ax):
    ax.set_ylim(1e-6, 10)
    plotting.error_curves(ax, {"gd": 10.0 ** -np.arange(16)}, xscale="symlog")
    assert ax.get_ylim() == pytest.approx((1e-6, 10))
    (box,) = extents(ax)
    assert box.y0 >= ax.get_window_extent().y0


def test_a_line_of_many_points_gets_few_markers(ax):
    plotting.error_curves(ax, {"gd": np.geomspace(1, 1e-9, 20_000)}, xscale="symlog")
    assert len(ax.lines[0].get_markevery()) <= 8


def test_a_slope_guide_has_the_slope_it_says(ax):
    ax.loglog([1, 100], [1, 1e4])
    plotting.slope_guide(ax, (2, 5), -1.5, factor=8)
    x, y = ax.lines[-1].get_data()
    assert np.diff(np.log(y)) / np.diff(np.log(x)) == pytest.approx([-1.5])
    assert ax.texts[-1].get_text() == "slope -1.5"


def test_an_annotation_takes_its_lines_colour_and_place(ax):
    (line,) = ax.plot([0, 1, 2], [5, 6, 7], color="#123456")
    note = plotting.annotate_line(ax, line, "here", at=1.0)
    assert note.xy == (2, 7)
    assert note.get_color() == "#123456"


def test_a_spectrum_is_drawn_in_descending_order_without_zeros(ax):
    plotting.spectrum_plot(ax, {"A": [0.0, 0.1, 1.0, 0.5]})
    assert ax.lines[0].get_ydata().tolist() == [1, 0.5, 0.1]
    assert ax.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert ax.texts[0].get_text() == "A"


def test_every_curve_of_a_spectrum_stands_out_from_the_panel(ax):
    sigma = theory.spectrum_after(np.geomspace(1, 1e-3, 8), 5).sigma
    plotting.spectrum_plot(ax, {f"step {i}": s for i, s in enumerate(sigma)})
    assert all(contrast(line.get_color(), plotting.PANEL) > 2 for line in ax.lines)


@pytest.mark.parametrize("sizes", [(240, 240, 2, 2), (5, 8, 1, 1), (3, 4, 6, 9), (2, 100, 1, 300)])
def test_every_block_names_itself_and_holds_its_text(ax, sizes):
    plotting.block_matrix(ax, *sizes)
    texts = " ".join(text.get_text() for text in ax.texts)
    d, n, d_out, n_query = sizes
    for words in ("$A$", "$B$", "$C$", "$D$ = ?", f"{d} × {n}", f"{d_out} × {n_query}"):
        assert words in texts
    boxes, frames = extents(ax), [patch.get_window_extent() for patch in ax.patches]
    for box in boxes:
        assert any(
            f.x0 <= box.x0 and box.x1 <= f.x1 and f.y0 <= box.y0 and box.y1 <= f.y1 for f in frames
        )
    for a, b in itertools.combinations(boxes, 2):
        assert not a.overlaps(b)


def test_a_table_reads_the_same_as_text_markdown_and_html():
    rows = [
        {"method": "GD", "steps": 12345, "ok": np.bool_(False)},
        {"method": "a|b <i>", "steps": np.int64(7), "error": 1.234e-9, "ok": True},
    ]
    table = plotting.table(rows, {"method": "", "steps": ",d", "error": ".1e", "ok": ""})
    assert str(table) == repr(table)
    assert str(table).splitlines() == [
        "method    steps    error  ok",
        "-------  ------  -------  ---",
        "GD       12,345        –  no",
        "a|b <i>       7  1.2e-09  yes",
    ]
    assert table._repr_markdown_().splitlines() == [
        "| method | steps | error | ok |",
        "| :--- | ---: | ---: | :--- |",
        "| GD | 12,345 | – | no |",
        "| a\\|b <i> | 7 | 1.2e-09 | yes |",
    ]
    page = table._repr_html_()
    assert "a|b &lt;i&gt;" in page
    assert page.count('scope="col"') == 4
    assert page.count("<tr>") == 3


def test_numbers_without_a_format_get_three_digits():
    assert plotting.table([[1, 2.34567, np.float32(1e-7)]], ["a", "b", "c"]).cells == (
        ("1", "2.35", "1e-07"),
    )


def test_an_empty_table_has_its_headings():
    assert str(plotting.table([], ["a", "bc"])).splitlines() == ["a  bc", "-  --"]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda ax: plotting.error_curves(ax, {"sgd": [1]}), "unknown method 'sgd'; expected one"),
        (lambda ax: plotting.error_curves(ax, {"gd": ([1, 2], [1])}), "'gd' needs x and errors"),
        (lambda ax: plotting.slope_guide(ax, (0, 1), 1), "start must be positive"),
        (lambda ax: plotting.annotate_line(ax, ax.plot([1])[0], "", at=2), "at must lie"),
        (lambda ax: plotting.annotate_line(ax, ax.plot([])[0], ""), "no points"),
        (lambda ax: plotting.table([[1, 2]], ["a"]), "row 0 has 2 values"),
        (lambda ax: plotting.table([{"b": 2}], ["a"]), "row 0 has no column for b"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(ax, call, word):
    with pytest.raises(ValueError, match=word):
        call(ax)
