"""Files: what is written comes back to the bit; what is damaged is named."""

from __future__ import annotations

import io
import os
import zipfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from linear_icl import files

MARKET = "%%MatrixMarket matrix "


def npy_bytes(array, **kwargs):
    stream = io.BytesIO()
    np.save(stream, array, **kwargs)
    return stream.getvalue()


def refused(path, *words, **kwargs):
    """Reading fails with a ValueError that names the argument, the file and each word."""
    with pytest.raises(ValueError, match=r"^A: ") as caught:
        files.read_array(path, "A", **kwargs)
    message = str(caught.value)
    for word in (os.path.basename(str(path)).partition(":")[0], *words):
        assert word in message, message


@pytest.mark.parametrize("extension", files.EXTENSIONS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    array=npst.arrays(
        st.sampled_from([np.float64, np.float32, np.int32, np.bool_]),
        npst.array_shapes(min_dims=2, max_dims=2, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
def test_a_matrix_comes_back_to_the_last_bit(tmp_path, extension, array):
    path = tmp_path / f"M{extension}"
    files.write_array(path, array)
    read = files.read_array(path)
    assert read.dtype.kind == "f"
    assert np.array_equal(read, array.astype(np.float64))
    assert os.listdir(tmp_path) == [path.name]


def test_float_precision_is_kept_by_numpy_formats(tmp_path):
    array = np.ones((2, 3, 4), dtype=np.float32)
    for extension in (".npy", ".npz"):
        files.write_array(tmp_path / f"M{extension}", array)
        read = files.read_array(tmp_path / f"M{extension}")
        assert read.dtype == np.float32
        assert read.shape == (2, 3, 4)


def test_a_foreign_byte_order_becomes_native(tmp_path):
    np.save(tmp_path / "M.npy", np.arange(3.0).astype(">f4"))
    read = files.read_array(tmp_path / "M.npy")
    assert read.dtype.isnative
    assert read.tolist() == [0, 1, 2]


def test_a_fortran_ordered_npy_is_read_as_it_was(tmp_path):
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "M.npy", array)
    assert np.array_equal(files.read_array(tmp_path / "M.npy"), array)


def test_npy_can_be_mapped_and_is_then_read_only(tmp_path):
    np.save(tmp_path / "M.npy", np.eye(3))
    mapped = files.read_array(tmp_path / "M.npy", mmap=True, memory_limit=8)
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    files.write_array(tmp_path / "M.csv", mapped)
    with pytest.raises(ValueError, match=r"mmap=True is possible for \.npy"):
        files.read_array(tmp_path / "M.csv", mmap=True)


@pytest.mark.parametrize("mmap", [True, False])
def test_who_checks_the_entries_may_read_any_even_none(tmp_path, mmap):
    for array in (np.array([[1.0, np.nan]]), np.zeros((3, 0))):
        np.save(tmp_path / "A.npy", array)
        found = files.read_array(tmp_path / "A.npy", mmap=mmap, check_finite=False)
        np.testing.assert_array_equal(found, array)
        refused(tmp_path / "A.npy")


def test_an_array_of_an_npz_is_found_by_its_key(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, A=np.eye(2), B=np.ones((1, 2)))
    assert np.array_equal(files.read_array(f"{path}:B"), np.ones((1, 2)))
    assert np.array_equal(files.read_array(path, key="A"), np.eye(2))
    refused(path, "2 arrays", "A, B")
    refused(f"{path}:Q", "'Q'", "A, B")
    with pytest.raises(ValueError, match="key='A'"):
        files.read_array(f"{path}:B", key="A")
    files.write_array(f"{path}:D", np.zeros(3))
    assert files.read_array(f"{path}:D").shape == (3,)


def test_a_key_without_an_npz_is_refused(tmp_path):
    np.save(tmp_path / "A.npy", np.eye(2))
    refused(tmp_path / "A.npy", "key='B'", key="B")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"not numpy", ["wrong first bytes"]),
        (npy_bytes(np.eye(4))[:50], ["cut off"]),
        (npy_bytes(np.eye(4))[:-8], ["(4, 4)", "120 bytes"]),
        (npy_bytes(np.eye(4)) + b"more", ["132 bytes"]),
        (npy_bytes(np.array([{}], dtype=object), allow_pickle=True), ["objects"]),
        (npy_bytes(np.array(["one"])), ["<U3"]),
        (npy_bytes(np.eye(2) * 1j), ["complex128"]),
        (npy_bytes(np.zeros(2, dtype=[("a", "f8")])), ["real numbers"]),
        (npy_bytes(np.array([[1.0, 2.0], [3.0, np.nan]])), ["[1, 1]", "nan"]),
        (npy_bytes(np.array([np.inf, 1.0])), ["[0]", "inf"]),
        (npy_bytes(np.array(np.nan)), ["shape ()"]),
        (npy_bytes(np.zeros((0, 3))), ["(0, 3)"]),
    ],
)
def test_a_damaged_npy_is_refused_with_the_reason(tmp_path, content, words):
    path = tmp_path / "A.npy"
    path.write_bytes(content)
    refused(path, *words)


def test_a_declared_shape_is_not_believed_before_memory_is_allocated(tmp_path):
    path = tmp_path / "A.npy"
    header = npy_bytes(np.zeros((1000, 1)))
    path.write_bytes(header.replace(b"(1000, 1)", b"(9000000000, 1)").replace(b" " * 6, b"", 1))
    refused(path, "9000000000", "72000000000 bytes")
    path.write_bytes(header[:128].replace(b"(1000, 1)", b"(10**9,1)") + header[128:])
    refused(path, "header is damaged")
    path.write_bytes(header)
    refused(path, "memory_limit", memory_limit=100)


def test_a_not_finite_entry_far_into_a_large_array_is_found(tmp_path):
    array = np.zeros((3, 2**22 // 2), dtype=np.float32)
    array[2, 7] = -np.inf
    np.save(tmp_path / "A.npy", array)
    refused(tmp_path / "A.npy", "[2, 7]", "-inf")


def test_a_damaged_npz_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "A.npz"
    path.write_bytes(b"PK but no archive")
    refused(path, "no readable .npz")
    np.savez_compressed(path, A=np.random.default_rng(0).normal(size=50))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "no readable .npz")
    path.write_bytes(whole[:120] + bytes(20) + whole[140:])
    refused(path, "no readable .npz")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no array here")
    refused(path, "holds no array")
    np.savez(path, A=np.array([None]))
    refused(path, "objects")
    np.savez_compressed(path, A=np.zeros(10_000))
    refused(path, "memory_limit", memory_limit=1000)


def test_a_header_line_of_a_csv_is_left_out(tmp_path):
    path = tmp_path / "A.csv"
    path.write_text("\ufeff\"age\",'bmi'\n1, 2e3\n\n -3.5 ,4\n", encoding="utf-8")
    assert files.read_array(path).tolist() == [[1, 2000], [-3.5, 4]]
    path.write_text("7\n")
    assert files.read_array(path).tolist() == [[7]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("1,2\n3\n", ["line 2", "1 cells", "have 2"]),
        ("a,b\n1,2\n\n3,4,5\n", ["line 4", "3 cells"]),
        ("a,b\n1,x\n", ["line 2, column 2", "'x'"]),
        ("a,2\n1,2\n", ["line 1, column 1", "'a'"]),
        ("1,2\n3,\n", ["line 2, column 2", "''"]),
        ("1,2\n3,nan\n", ["line 2, column 2", "'nan'", "finite"]),
        ("1,2\n-inf,3\n", ["line 2, column 1", "finite"]),
        ("1,1e999\n", ["line 1, column 2", "finite"]),
        ("1,1_000\n", ["line 1, column 2", "not a number"]),
        ("1;2\n3;4\n", ["line 2, column 1", "separated by commas"]),
        ("a\tb\n", ["header in line 1"]),
        ("1\n2;3\n", ["line 2, column 1", "separated by commas"]),
        ("\n\n", ["no numbers"]),
        ('"1,2\n3,4\n', ["holds"]),
    ],
)
def test_a_csv_error_names_line_and_column(tmp_path, content, words):
    path = tmp_path / "A.csv"
    path.write_text(content)
    refused(path, *words)


def test_a_binary_file_called_csv_is_refused(tmp_path):
    (tmp_path / "A.csv").write_bytes(b"\x93NUMPY\xff\xfe")
    refused(tmp_path / "A.csv", "UTF-8")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("coordinate real symmetric\n2 2 2\n1 1 2.0\n2 1 3\n", [[2, 3], [3, 0]]),
        ("coordinate real skew-symmetric\n2 2 1\n2 1 3\n", [[0, -3], [3, 0]]),
        ("coordinate pattern symmetric\n2 2 2\n1 1\n2 1\n", [[1, 1], [1, 0]]),
        ("array integer general\n% a comment\n2 2\n1\n2\n3\n4\n", [[1, 3], [2, 4]]),
        ("array real symmetric\n2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
        ("array real skew-symmetric\n2 2\n3\n", [[0, -3], [3, 0]]),
        ("coordinate real general\n1 2 2\n1 2 1\n1 2 1\n", [[0, 2]]),
        ("coordinate real general\n2 3 1\n1 3 5e-1\n", [[0, 0, 0.5], [0, 0, 0]]),
    ],
)
def test_every_kind_of_real_matrix_market_file_becomes_dense(tmp_path, content, expected):
    path = tmp_path / "A.mtx"
    path.write_text(MARKET + content)
    read = files.read_array(path)
    assert read.dtype == np.float64
    assert read.tolist() == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("hello\n", ["%%MatrixMarket"]),
        (MARKET + "coordinate complex general\n1 1 1\n1 1 2 1\n", ["complex"]),
        (
            MARKET + "coordinate real general\n3 3 5\n1 1 2.0\n3 3 1.25e0\n1 2 1e0\n",
            ["declares 5", "3 follow"],
        ),
        (
            MARKET + "coordinate real general\n3 3 500\n1 1 2.0\n",
            ["500 entries", "1 follow", "cut off"],
        ),
        (MARKET + "array real general\n10000 10000\n1\n", ["100000000 entries"]),
        (MARKET + "coordinate real general\n1000000 1000000 1\n1 1 2\n", ["memory_limit"]),
        (MARKET + "coordinate real general\n2 2 1\n3 1 2.0\n", ["line 3", "(3, 1)", "(2, 2)"]),
        (MARKET + "coordinate real general\n2 2 1\n1 2 x\n", ["line 3", "'x'"]),
        (MARKET + "coordinate real general\n2 2 1\n1 2 nan\n", ["line 3", "not finite"]),
        (MARKET + "coordinate real symmetric\n2 3 1\n1 2 1\n", ["symmetric", "(2, 3)"]),
        (MARKET + "array real general\n", ["rows and columns"]),
        (MARKET + "array real general\n1 1\n5\x00\n", ["line 3", "not a number"]),
        (MARKET + "array real general\n1 1\n5\n6\n", ["line 4", "no further line"]),
        (MARKET + "coordinate real general\n2 2 1\n1 1 1\n1 2 1\n", ["line 4", "1 lines"]),
        (MARKET + "coordinate real general\n-2 2 1\n1 1 1\n", ["line 2", "'-2'"]),
        ("%%MatrixMarket vector array real general\n1\n1\n", ["'vector'"]),
        (MARKET + "array real\n1 1\n1\n", ["''", "skew-symmetric"]),
        (MARKET + "array real general\n0 2\n", ["(0, 2)"]),
    ],
)
def test_a_damaged_matrix_market_file_is_refused_with_the_reason(tmp_path, content, words):
    path = tmp_path / "A.mtx"
    path.write_text(content)
    refused(path, *words)


@pytest.mark.parametrize("extension", files.EXTENSIONS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_any_damaged_byte_gives_an_array_or_a_value_error(tmp_path, extension, place, byte, cut):
    path = tmp_path / f"A{extension}"
    files.write_array(path, np.arange(6.0).reshape(2, 3))
    content = bytearray(path.read_bytes())
    place %= len(content)
    content = content[:place] if cut else content[:place] + bytes([byte]) + content[place + 1 :]
    path.write_bytes(content)
    try:
        assert np.isfinite(files.read_array(path, "A")).all()
    except ValueError as error:
        assert str(error).startswith("A: ")  # noqa: PT017


def test_what_is_not_a_file_of_a_known_kind_is_refused(tmp_path):
    refused(tmp_path, "folder")
    (tmp_path / "A.npy").mkdir()
    refused(tmp_path / "A.npy", "folder")
    (tmp_path / "A.xlsx").write_bytes(b"PK")
    refused(tmp_path / "A.xlsx", "'.xlsx'", ".npy, .npz, .csv, .mtx")
    with pytest.raises(FileNotFoundError, match=r"A: .*missing\.csv: no such file"):
        files.read_array(tmp_path / "missing.csv", "A")


@pytest.mark.parametrize("extension", files.EXTENSIONS)
def test_writing_creates_folders_and_replaces_whole(tmp_path, extension):
    path = tmp_path / "out {1}" / "a b" / f"D{extension}"
    files.write_array(path, np.ones((50, 50)))
    files.write_array(path, [[2.0]])
    assert files.read_array(path).tolist() == [[2]]
    assert os.listdir(path.parent) == [path.name]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "D.npy"
    files.write_array(path, [1.0])

    def fail(stream, array, **kwargs):
        stream.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_array(path, [2.0])
    assert files.read_array(path).tolist() == [1]
    assert os.listdir(tmp_path) == ["D.npy"]


def test_a_link_keeps_pointing_at_the_file_that_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "D.npy").symlink_to(tmp_path / "real" / "D.npy")
    files.write_array(tmp_path / "D.npy", [3.0])
    assert (tmp_path / "D.npy").is_symlink()
    assert files.read_array(tmp_path / "real" / "D.npy").tolist() == [3]


@pytest.mark.parametrize(
    ("name", "array", "word"),
    [
        ("D.txt", [1.0], "'.txt'"),
        ("D.csv", np.ones((2, 2, 2)), "(2, 2, 2)"),
        ("D.mtx", np.ones(()), "()"),
        ("D.npy", np.array([1j]), "complex128"),
        ("D.npy", np.array([None]), "object"),
        ("D.csv", [[1.0, np.nan]], "[0, 1]"),
    ],
)
def test_what_cannot_be_read_back_is_not_written(tmp_path, name, array, word):
    with pytest.raises(ValueError, match=name) as caught:
        files.write_array(tmp_path / name, array)
    assert word in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("extension", [".csv", ".mtx"])
def test_a_vector_is_written_as_one_column(tmp_path, extension):
    files.write_array(tmp_path / f"w{extension}", [1.0, 2.0])
    assert files.read_array(tmp_path / f"w{extension}").tolist() == [[1], [2]]


def test_text_is_written_in_utf_8_with_the_permissions_of_any_new_file(tmp_path):
    files.write_text(tmp_path / "new" / "κ.json", "κ\n")
    assert (tmp_path / "new" / "κ.json").read_bytes() == "κ\n".encode()
    (tmp_path / "plain").write_text("")
    modes = [os.stat(tmp_path / name).st_mode for name in ("new/κ.json", "plain")]
    assert modes[0] == modes[1]
    with pytest.raises(ValueError, match="folder"):
        files.write_text(tmp_path / "new", "text")


def test_matrix_market_files_agree_with_scipy(tmp_path):
    matrix = scipy.sparse.random_array((7, 5), density=0.3, rng=0)
    scipy.io.mmwrite(tmp_path / "A.mtx", matrix)
    assert np.array_equal(files.read_array(tmp_path / "A.mtx"), matrix.toarray())
    files.write_array(tmp_path / "B.mtx", matrix.toarray())
    assert np.array_equal(scipy.io.mmread(tmp_path / "B.mtx"), matrix.toarray())


def test_a_csv_with_a_zero_byte_is_refused(tmp_path):
    path = tmp_path / "A.csv"
    path.write_bytes(b"\x00x,y\n1,2\n")
    with pytest.raises(ValueError, match="zero byte"):
        files.read_array(path)
