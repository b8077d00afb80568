"""Anything at all is given to solvers and files: a right answer, or an error that names it.

``LINEAR_ICL_FUZZ=2000`` in the environment draws that many examples a test, at random, instead of
a few that are always the same.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from linear_icl import cli, files, solvers

EXAMPLES = os.environ.get("LINEAR_ICL_FUZZ")
fuzz = settings(
    max_examples=int(EXAMPLES or 10),
    derandomize=EXAMPLES is None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# ---------------------------------------------------------------------------------------------
# Solvers


def eagle_with(**options):
    return lambda A, B, C=None, **more: solvers.eagle(A, B, C, **options, **more)


def least_squares_by(method):
    return lambda A, B: solvers.least_squares(A, B, method=method)


# Solver of a prompt, and whether it takes a query.
PROMPT_SOLVERS = {
    "eagle": (eagle_with(), True),
    "eagle, data form": (eagle_with(form="data"), True),
    "eagle, Gram form": (eagle_with(form="gram"), True),
    "eagle, minimax": (eagle_with(form="data", schedule="minimax"), True),
    "gd++": (solvers.gd_plus_plus, True),
    "gradient descent": (lambda A, B: solvers.gradient_descent(A, B, maxiter=200), False),
    "cgls": (solvers.cgls, False),
    "qr": (least_squares_by("qr"), False),
    "svd": (least_squares_by("svd"), False),
    "cholesky": (least_squares_by("cholesky"), False),
    "nystrom": (solvers.nystrom, True),
}
with_every_solver = pytest.mark.parametrize("name", PROMPT_SOLVERS)


def solution(result):
    found = next(a for a in (result.x, result.W, result.D) if a is not None)
    return found.detach().numpy() if isinstance(found, torch.Tensor) else found


def require_refusal_or_finite(solve, names, *arguments, **options):
    """The result, finite; or None after a TypeError or ValueError that names an argument."""
    try:
        result = solve(*arguments, **options)
    except (TypeError, ValueError) as error:
        result, words = None, str(error)
    else:
        words = ""
    if result is None:
        assert re.search(rf"\b({'|'.join(names)})\b", words), words
        return None
    assert np.isfinite(solution(result)).all(), result.message
    return result


LAYOUTS = {
    "plain": lambda a: a,
    "Fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: a[..., ::-1].copy()[..., ::-1],
    "read-only": lambda a: np.frombuffer(a.tobytes(), dtype=a.dtype).reshape(a.shape),
    "foreign byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "list": lambda a: a.tolist() if a.size else a,
    "matrix": lambda a: a.view(np.matrix) if a.ndim == 2 else a,
    "broadcast batch": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "tensor": lambda a: torch.tensor(a),
    "tensor with gradient": lambda a: torch.tensor(a, requires_grad=a.dtype.kind == "f"),
}


@st.composite
def prompts(draw):
    """A, B, C of any shape, rank and scale, with κ(A) on its range at most 1e3."""
    d, n, k = draw(st.integers(0, 5)), draw(st.integers(0, 12)), draw(st.integers(0, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rank = draw(st.integers(0, min(d, n)))
    left = np.linalg.qr(rng.standard_normal((d, d)))[0][:, :rank]
    right = np.linalg.qr(rng.standard_normal((n, n)))[0][:, :rank]
    A = (left * np.geomspace(1, draw(st.sampled_from([1.0, 0.1, 1e-3])), rank)) @ right.T
    B, C = rng.standard_normal((k, n)), rng.standard_normal((d, draw(st.integers(0, 2))))
    kind = draw(st.sampled_from(["f8", "f8", "f4", "i4", "?"]))
    if kind not in ("f8", "f4"):
        return tuple(np.round(3 * a).astype(kind) for a in (A, B, C))
    exponents = st.integers(-300, 300) if kind == "f8" else st.integers(-30, 30)
    a, b = draw(exponents), draw(exponents)
    c = draw(exponents)
    return tuple((10.0**e * block).astype(kind) for e, block in ((a, A), (b, B), (c, C)))


@with_every_solver
@fuzz
@given(prompt=prompts(), layout=st.sampled_from(list(LAYOUTS)), query=st.booleans())
def test_a_solver_gives_the_pseudoinverse_or_says_that_it_did_not(name, prompt, layout, query):
    solve, takes_query = PROMPT_SOLVERS[name]
    query = (query and takes_query) or name == "nystrom"
    prompt = prompt if query else prompt[:2]
    given_blocks = [LAYOUTS[layout](block) for block in prompt]
    copies = [block.copy() for block in prompt]
    result = require_refusal_or_finite(solve, "ABC", *given_blocks)
    for block, copy in zip(prompt, copies, strict=True):
        assert np.array_equal(block, copy)
    if result is None:
        return
    scales = [np.max(np.abs(block.astype(float)), initial=0.0) or 1.0 for block in prompt]
    A, B, *C = (block.astype(float) / size for block, size in zip(prompt, scales, strict=True))
    sigma = np.linalg.svd(A, compute_uv=False)
    single = prompt[0].dtype == np.float32 and not isinstance(given_blocks[0], list)
    epsilon = np.finfo(np.float32 if single else float).eps
    largest = sigma.max(initial=0.0)
    cut = 100 * epsilon * largest
    expected = B @ np.linalg.pinv(A, rcond=100 * epsilon) if A.size else B @ A.T
    expected = expected @ C[0] if C else expected
    logs = np.log10(scales) * ([-1, 1] if not C else [-1, 1, 1])
    if not result.converged or abs(logs.sum()) > (30 if single else 280):
        return
    found = solution(result).astype(float) / 10.0 ** logs.sum()
    kappa = largest / sigma[sigma > cut].min(initial=largest or 1.0) if largest else 1.0
    sizes = np.linalg.norm(B) * (np.linalg.norm(C[0]) if C else 1.0) / (largest or 1.0)
    tolerance = 1e-6 + 1e3 * epsilon * kappa
    np.testing.assert_allclose(
        found, np.broadcast_to(expected, found.shape), rtol=0, atol=tolerance * kappa**2 * sizes
    )


def hostile_values(block):
    """What could stand where an array of numbers is expected."""
    spoiled = block.copy()
    spoiled.flat[0] = np.nan
    infinite = np.where(np.isnan(spoiled), -np.inf, spoiled)
    return {
        "nothing": None,
        "a word": "abc",
        "bytes": b"abc",
        "words": block.astype(str),
        "objects": np.array([[object()]]),
        "numbers as objects": block.astype(object),
        "ragged rows": [[1, 2], [3]],
        "complex": block + 0j,
        "half precision": block.astype(np.float16),
        "long double": block.astype(np.longdouble),
        "bfloat16": torch.tensor(block).bfloat16(),
        "complex tensor": torch.tensor(block) + 0j,
        "sparse tensor": torch.tensor(block).to_sparse(),
        "a tensor among arrays": torch.tensor(block),
        "masked": np.ma.masked_less(block, 0),
        "NaN": spoiled,
        "infinity": infinite,
        "NaN in a tensor": torch.tensor(spoiled),
        "a scalar": 1.0,
        "zero dimensions": np.array(1.0),
        "a dictionary": {},
        "a set": {1},
        "dates": block.astype("M8[s]"),
        "records": np.zeros(block.shape, dtype=[("a", "f8")]),
        "an empty list": [],
        "an empty row": [[]],
        "four dimensions": np.ones((1, 2, 3, 4)),
        "an empty batch": np.ones((0, *block.shape)),
        "another batch": np.ones((5, *block.shape)),
        "a column less": block[..., :-1],
        "another shape": np.ones((7, 9)),
        "a vector": np.ones(9),
        "no size": np.zeros((0, 0)),
        "truth values": block > 0,
        "big-endian": block.astype(">f8"),
        "sparse": scipy.sparse.csr_array(block),
        "sparse NaN": scipy.sparse.csr_array(spoiled),
        "sparse complex": scipy.sparse.csr_array(block + 0j),
        "an operator": aslinearoperator(block),
        "a complex operator": aslinearoperator(block + 0j),
    }


A_BLOCK = np.array([[2.0, -1.0, 0.5], [0.0, 1.0, 3.0]])
B_BLOCK = np.array([[1.0, -2.0, 0.5]])
C_BLOCK = np.array([[1.0, 0.0], [-2.0, 1.0]])
SYSTEM = {"A": np.eye(2), "b": np.ones((2, 1)), "x0": np.zeros((2, 1)), "M": np.eye(2)}
REGRESSION = {"A": A_BLOCK, "B": B_BLOCK, "W0": np.zeros((1, 2))}
FRONT_DOORS = {
    name: (solve, {"A": A_BLOCK, "B": B_BLOCK} | ({"C": C_BLOCK} if takes_query else {}))
    for name, (solve, takes_query) in PROMPT_SOLVERS.items()
} | {
    "conjugate gradients": (solvers.conjugate_gradient, SYSTEM),
    "cgls from a start": (solvers.cgls, REGRESSION),
    "gradient descent from a start": (solvers.gradient_descent, REGRESSION),
}


@pytest.mark.parametrize("name", FRONT_DOORS)
def test_a_value_that_is_no_array_of_numbers_is_refused_by_name(name):
    solve, arguments = FRONT_DOORS[name]
    for argument, block in arguments.items():
        for kind, value in hostile_values(block).items():
            result = require_refusal_or_finite(solve, [argument], **arguments | {argument: value})
            never = ("complex", "half", "NaN", "infinity", "masked", "objects", "records", "dates")
            if any(word in kind for word in never):
                assert result is None, f"{argument} = {kind} was accepted"


def test_sparse_matrices_are_pointed_to_cgls():
    for value in (scipy.sparse.csr_array(A_BLOCK), scipy.sparse.csr_matrix(A_BLOCK)):
        with pytest.raises(TypeError, match=r"A is a sparse matrix.*solvers\.cgls"):
            solvers.eagle(value, B_BLOCK)


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@with_every_solver
@fuzz
@given(A=shapes, B=shapes, C=shapes | st.none())
def test_shapes_that_do_not_fit_are_named(name, A, B, C):
    solve, takes_query = PROMPT_SOLVERS[name]
    blocks = [np.ones(A), np.ones(B)]
    if takes_query and (C is not None or name == "nystrom"):
        blocks.append(np.ones(C or ()))
    result = require_refusal_or_finite(solve, "ABC", *blocks)
    if result is not None:
        batch = np.broadcast_shapes(*(block.shape[:-2] for block in blocks))
        assert solution(result).shape[: len(batch)] == batch
        assert result.statuses.shape == batch


@fuzz
@given(A=shapes, b=shapes, x0=shapes | st.none(), M=shapes | st.none())
def test_shapes_of_a_system_that_do_not_fit_are_named(A, b, x0, M):
    options = {name: np.ones(s) for name, s in (("x0", x0), ("M", M)) if s is not None}
    result = require_refusal_or_finite(
        solvers.conjugate_gradient, ["A", "b", "x0", "M"], np.ones(A), np.ones(b), **options
    )
    if result is not None:
        assert solution(result).shape[-len(b) :] == b


@fuzz
@given(
    seed=st.integers(0, 2**32),
    d=st.integers(0, 5),
    exponents=st.tuples(st.integers(-300, 300), st.integers(-300, 300)),
    kappa=st.sampled_from([1.0, 10.0, 1e4]),
    wrap=st.sampled_from([np.asarray, scipy.sparse.csr_array, aslinearoperator]),
    kind=st.sampled_from(["definite", "indefinite", "singular"]),
)
def test_conjugate_gradients_call_nothing_converged_that_is_not(
    seed, d, exponents, kappa, wrap, kind
):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.geomspace(1, kappa, d)
    if d and kind != "definite":
        values[0] = -1.0 if kind == "indefinite" else 0.0
    S = (Q * values) @ Q.T
    S, b = 10.0 ** exponents[0] * (S + S.T) / 2, 10.0 ** exponents[1] * rng.standard_normal((d, 2))
    result = require_refusal_or_finite(solvers.conjugate_gradient, ["A", "b"], wrap(S), b)
    # A solution below the normal numbers has no digits to judge.
    if result is not None and result.converged and exponents[1] - exponents[0] > -290:
        with np.errstate(all="ignore"):
            size = 10.0 ** exponents[1]
            residual = np.linalg.norm(b / size - S @ (result.x / size), axis=0)
        assert (residual <= 1.001e-8 * np.linalg.norm(b / size, axis=0)).all()


MISBEHAVIOURS = {
    "another shape": lambda v: np.ones(len(v) + 1),
    "NaN": lambda v: v * np.nan,
    "infinity": lambda v: v + np.inf,
    "complex numbers": lambda v: v * 1j,
    "huge numbers": lambda v: v * 1e308,
    "tiny numbers": lambda v: v * 1e-320,
    "zero": lambda v: v * 0,
    "the reverse": lambda v: v[::-1],
    "a rotation": lambda v: np.roll(v, 1),
    "the negative": lambda v: -v,
    "words": lambda v: np.array(["a"] * len(v)),
    "a list": lambda v: [1.0] * len(v),
}


@pytest.mark.parametrize("kind", MISBEHAVIOURS)
@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("place", ["A", "Aᵀ", "M", "A, a callable", "M, a callable"])
def test_a_misbehaving_operator_does_not_lead_to_a_wrong_answer(kind, after, place):
    d, calls = 4, []
    honest = np.diag([1.0, 2.0, 5.0, 9.0])
    right_hand_side = np.array([1.0, -2.0, 3.0, 0.5])

    def product(v):
        calls.append(v)
        v = np.ravel(v)
        return honest @ v if len(calls) <= after else MISBEHAVIOURS[kind](v)

    if "callable" in place:
        bad = product
    elif place == "Aᵀ":
        bad = LinearOperator((d, d), matvec=lambda v: honest @ v, rmatvec=product, dtype=float)
    else:
        bad = LinearOperator((d, d), matvec=product, rmatvec=lambda v: honest @ v, dtype=float)
    if place.startswith("M"):
        solve = lambda: solvers.conjugate_gradient(honest, right_hand_side, M=bad)  # noqa: E731
    elif "callable" in place:
        solve = lambda: solvers.conjugate_gradient(bad, right_hand_side)  # noqa: E731
    else:
        solve = lambda: solvers.cgls(bad, right_hand_side)  # noqa: E731
    result = require_refusal_or_finite(solve, [place[0]])
    if result is not None and result.converged and place.startswith("M"):
        np.testing.assert_allclose(honest @ result.x, right_hand_side, atol=1e-7)


# ---------------------------------------------------------------------------------------------
# Files


def saved(write, *arguments, **options):
    stream = io.BytesIO()
    write(stream, *arguments, **options)
    return stream.getvalue()


def solve_in_process(capsys, *arguments):
    """Exit code and standard error of ``linear-icl solve``."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["solve", *map(str, arguments)])
    return caught.value.code, capsys.readouterr().err


def require_array_or_one_line(capsys, folder, name, content):
    """What ``read_array`` reads; None after the command refused the file in one line."""
    path = folder / name
    path.write_bytes(content)
    try:
        array = files.read_array(path, "A")
    except ValueError as error:
        array, words = None, str(error)
    if array is None:
        assert name in words
    if array is None or array.shape != (2, 3):
        np.save(folder / "B.npy", B_BLOCK)
        code, words = solve_in_process(capsys, path, folder / "B.npy", "-o", folder / "W.npy")
        if array is None:
            assert code == 2
            assert words.count("\n") == 1, words
            assert words.startswith("linear-icl: ")
            assert name in words
            assert "Traceback" not in words
            assert set(os.listdir(folder)) <= {name, "B.npy"}
    else:
        assert np.isfinite(array).all()
    for left in folder.iterdir():
        left.unlink()
    return array


NPY_KINDS = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(6.0, dtype=">f8").reshape(2, 3),
    np.arange(6, dtype=">i2").reshape(2, 3),
    np.ones((2, 3), dtype=bool),
    np.ones((2, 3), dtype=np.float16),
    np.ones((2, 3), dtype=np.longdouble),
]


@pytest.mark.parametrize("array", NPY_KINDS, ids=lambda a: a.dtype.str)
def test_every_plain_npy_and_npz_is_read_as_it_was_written(tmp_path, capsys, array):
    for name, content in (
        ("A.npy", saved(np.save, array)),
        ("A.npz", saved(np.savez, A=array)),
        ("A.npz", saved(np.savez_compressed, A=array)),
    ):
        read = require_array_or_one_line(capsys, tmp_path, name, content)
        assert np.array_equal(read, array)


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}, []], dtype=object),
        np.zeros(3, dtype=[("a", "f8"), ("b", "O")]),
        np.zeros(3, dtype=[("a", "f8")]),
        np.zeros(3, dtype="M8[s]"),
        np.zeros(3, dtype="V8"),
        np.array(["a"]),
        np.array(1.0),
        np.zeros((0, 3)),
        np.array([[1.0, np.nan]]),
        np.array([[1j]]),
    ],
    ids=lambda a: f"{a.dtype.str}{a.shape}",
)
def test_what_is_not_real_numbers_is_refused_in_one_line(tmp_path, capsys, array):
    for name, content in (
        ("A.npy", saved(np.save, array, allow_pickle=True)),
        ("A.npz", saved(np.savez, A=array)),
    ):
        assert require_array_or_one_line(capsys, tmp_path, name, content) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("A.npy", saved(np.save, NPY_KINDS[0])),
        ("A.npy", saved(np.save, NPY_KINDS[2])),
        ("A.npz", saved(np.savez, A=NPY_KINDS[0])),
        ("A.npz", saved(np.savez_compressed, A=NPY_KINDS[0], B=NPY_KINDS[3])),
    ],
    ids=["npy", "big-endian npy", "npz", "compressed npz"],
)
@fuzz
@given(data=st.data())
def test_damaged_bytes_give_numbers_or_one_line(tmp_path, capsys, name, content, data):
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(len(damaged)) | st.integers(0, len(damaged)))
    require_array_or_one_line(capsys, tmp_path, name, bytes(damaged[:cut]))


header_texts = st.fixed_dictionaries(
    {
        "descr": st.sampled_from(
            ["<f8", ">f8", "|O", "|V8", "<f99", "f8,f8", "", "<U4", "<M8[s]", [("a", "<f8")], 7]
        ),
        "fortran_order": st.sampled_from([True, False, 1, None, "yes"]),
        "shape": st.lists(
            st.sampled_from([-1, 0, 1, 2, 3, 2**31, 2**63, 10**30, True, 2.0, "a"]), max_size=4
        ).map(tuple),
    }
).map(repr) | st.text(max_size=60)


@fuzz
@given(header=header_texts, version=st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)]))
def test_no_npy_header_is_believed_beyond_the_size_of_the_file(tmp_path, capsys, header, version):
    text = header.encode("utf-8", "surrogatepass") + b"\n"
    length = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    content = b"\x93NUMPY" + bytes(version) + length + text + np.ones(6).tobytes()
    array = require_array_or_one_line(capsys, tmp_path, "A.npy", content)
    assert array is None or array.nbytes <= len(content)


cells = st.sampled_from(
    [
        "1",
        "-2.5",
        "1e3",
        "1e999",
        "nan",
        "inf",
        "",
        " 3 ",
        '"4"',
        '"',
        "x",
        "1;2",
        "1_0",
        "٣",
        "0x1",
    ]
)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


@fuzz
@given(
    rows=st.lists(st.lists(cells, max_size=3), max_size=4),
    end=line_ends,
    start=st.sampled_from([b"", b"\xef\xbb\xbf", b"\xff\xfe", b"x1,x2,x3\n", b"\x00"]),
)
def test_a_csv_is_read_or_refused_in_one_line(tmp_path, capsys, rows, end, start):
    text = end.join(",".join(row) for row in rows)
    array = require_array_or_one_line(capsys, tmp_path, "A.csv", start + text.encode())
    kept = [row for row in rows if row not in ([], [""])]
    try:
        expected = np.array([[float(cell) for cell in row] for row in kept])
    except ValueError:
        expected = None
    if array is not None and expected is not None and expected.ndim == 2:
        assert np.array_equal(array, expected)


@st.composite
def matrix_market(draw):
    """Matrix Market text, sound or with a fault or two; and whether SciPy may be asked."""
    layout = draw(st.sampled_from(["coordinate", "array"]))
    symmetry = draw(st.sampled_from(["general", "symmetric", "skew-symmetric", "hermitian"]))
    field = draw(st.sampled_from(["real", "integer", "pattern", "complex", "double"]))
    rows = draw(st.integers(0, 3))
    columns = rows if symmetry != "general" else draw(st.integers(0, 3))
    fault = draw(st.sampled_from([None, None, None, "count", "index", "cell", "square"]))
    first = {"general": lambda j: 0, "skew-symmetric": lambda j: j + 1}.get(symmetry, lambda j: j)
    places = [(i, j) for j in range(columns) for i in range(first(j), rows)]
    if layout == "coordinate" and places:
        places = draw(st.lists(st.sampled_from(places), max_size=5))  # some of them twice
    number = draw(st.sampled_from(["{}", "{}.5", "-{}e1", "+{}"])) if field != "integer" else "{}"
    value = "" if field == "pattern" else number
    value = f"{number} 1" if field == "complex" else value
    entries = [
        (f"{i + 1} {j + 1} " if layout == "coordinate" else "") + value.format(k % 7)
        for k, (i, j) in enumerate(places)
    ]
    count = len(entries) + (fault == "count")
    if fault == "square":
        columns += 1
    if fault == "cell":
        entries.append("1 1 x" if layout == "coordinate" else "x")
        count += 1
    if fault == "index" and layout == "coordinate":
        entries.append(f"{rows + 1} 0 {value.format(1)}")
        count += 1
    size = f"{rows} {columns}" + (f" {count}" if layout == "coordinate" else "")
    comments = draw(st.lists(st.sampled_from(["% a comment", "%", ""]), max_size=2))
    lines = [f"%%MatrixMarket matrix {layout} {field} {symmetry}", *comments, size, *entries]
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + "\n", fault


@fuzz
@given(drawn=matrix_market())
def test_a_matrix_market_file_is_read_as_scipy_reads_it_or_refused(tmp_path, capsys, drawn):
    text, fault = drawn
    array = require_array_or_one_line(capsys, tmp_path, "A.mtx", text.encode())
    if "complex" in text or "hermitian" in text:
        assert array is None
    if array is None or fault is not None:
        return
    try:
        known = scipy.io.mmread(io.BytesIO(text.encode()))
    except ValueError:
        return
    known = known.toarray() if scipy.sparse.issparse(known) else known
    assert np.array_equal(array, known), text


@fuzz
@given(text=st.text(alphabet="0123456789 .-+eE%\n\r\tMatrix", max_size=80))
def test_arbitrary_matrix_market_text_is_read_or_refused(tmp_path, capsys, text):
    start = "%%MatrixMarket matrix coordinate real general\n"
    require_array_or_one_line(capsys, tmp_path, "A.mtx", (start + text).encode())


def test_a_refusal_is_one_line_and_exit_code_2_in_a_process_of_its_own(tmp_path):
    (tmp_path / "A.npy").write_bytes(
        saved(np.save, np.array([{}], dtype=object), allow_pickle=True)
    )
    done = subprocess.run(
        [sys.executable, "-m", "linear_icl.cli", "solve", "A.npy", "A.npy", "-o", "W.npy"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "A.npy: holds Python objects" in done.stderr
    assert os.listdir(tmp_path) == ["A.npy"]
