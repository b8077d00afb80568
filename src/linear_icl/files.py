"""Arrays and text in files: read with clear errors, written whole or not at all."""

from __future__ import annotations

import csv
import math
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.io

EXTENSIONS = (".npy", ".npz", ".csv", ".mtx")
MEMORY_LIMIT = 4 * 2**30

_MATRIX_MARKET_MAGIC = b"%%MatrixMarket"


def read_array(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    key: str | None = None,
    mmap: bool = False,
    memory_limit: int = MEMORY_LIMIT,
) -> np.ndarray:
    """Read one real, finite array from a ``.npy``, ``.npz``, ``.csv`` or ``.mtx`` file.

    Nothing is unpickled, and the shape that a file declares is held against the size that it
    has, and against ``memory_limit``, before memory is allocated.

    Parameters
    ----------
    path : str or path
        The file. ``.csv`` is comma-separated, one matrix row a line; a first line in which no
        cell is a number is taken as a header. ``.mtx`` is Matrix Market, coordinate or array
        format, made dense. An ``.npz`` that holds several arrays needs a key, either as
        ``key`` or behind the name as in ``"data.npz:A"``.
    name : str, optional
        What the array stands for, such as ``"A"``; used in error messages.
    key : str, optional
        Which array of an ``.npz`` to read.
    mmap : bool
        Map a ``.npy`` file into memory, read-only, instead of loading it.
    memory_limit : int, bytes
        The largest array that is loaded or expanded to dense form.

    Returns
    -------
    array : ndarray
        Floating-point dtypes are kept, in the machine's byte order; integers and booleans
        become float64. ``.csv`` and ``.mtx`` always give two dimensions.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not what its extension says, is cut off, or holds something other than
        real finite numbers. The message names the file and the place in it.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> write_text(folder / "A.csv", "x1,x2\\n1,2\\n3,4\\n")
    >>> read_array(folder / "A.csv", "A")
    array([[1., 2.],
           [3., 4.]])
    """
    file, key = _split_key(path, key)
    label = f"{name}: {file}" if name else str(file)
    extension = _extension(file, label)
    if key is not None and extension != ".npz":
        raise ValueError(f"{label}: key={key!r} selects an array of an .npz file only")
    if mmap and extension != ".npy":
        raise ValueError(f"{label}: mmap=True is possible for .npy files only")
    _require_file(file, label)
    if extension == ".npy":
        array = _read_npy(file, label, mmap, memory_limit)
    elif extension == ".npz":
        array = _read_npz(file, label, key, memory_limit)
    elif extension == ".csv":
        array = _read_csv(file, label)
    else:
        array = _read_mtx(file, label, memory_limit)
    return _as_real_finite(array, label)


def write_array(path: str | os.PathLike[str], array: Any) -> None:
    """Write one real, finite array to a ``.npy``, ``.npz``, ``.csv`` or ``.mtx`` file.

    The file appears whole or not at all: the data goes to a temporary file in the same folder,
    which then takes the name. Missing folders are created. :func:`read_array` gives back the
    same numbers, to the last bit.

    Parameters
    ----------
    path : str or path
        Where to write; the extension decides the format. The array of an ``.npz`` is called
        ``array`` unless the path says otherwise, as in ``"out.npz:D"``. An existing file is
        replaced as a whole.
    array : array
        Real numbers. ``.csv`` and ``.mtx`` hold a matrix; a one-dimensional array is written
        as one column there.

    Raises
    ------
    ValueError
        If the extension is unknown, the format cannot hold the array, or it is not finite.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "new" / "D.mtx"
    >>> write_array(file, [[0.1, 2.0]])
    >>> read_array(file)
    array([[0.1, 2. ]])
    """
    file, key = _split_key(path, None)
    label = str(file)
    extension = _extension(file, label)
    array = np.asarray(array)
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{label}: cannot write an array of dtype {array.dtype}; real numbers are expected"
        )
    _require_finite(array, label)
    if extension in (".csv", ".mtx"):
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2:
            raise ValueError(
                f"{label}: a {extension} file holds a matrix, but the array has shape "
                f"{array.shape}; write .npy or .npz instead"
            )
        array = array.astype(np.int64) if array.dtype.kind == "b" else array
    with _replacing(file) as stream:
        if extension == ".npy":
            np.save(stream, array, allow_pickle=False)
        elif extension == ".npz":
            np.savez(stream, allow_pickle=False, **{key or "array": array})
        elif extension == ".csv":
            for row in array.tolist():
                stream.write((",".join(map(repr, row)) + "\n").encode())
        else:
            scipy.io.mmwrite(stream, array, precision=17, symmetry="general")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, whole or not at all, creating missing folders.

    Parameters
    ----------
    path : str or path
        Where to write. An existing file is replaced as a whole.
    text : str
        The content; line ends are written as they are.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "results" / "note.txt"
    >>> write_text(file, "κ = 10\\n")
    >>> file.read_text(encoding="utf-8")
    'κ = 10\\n'
    """
    data = text.encode("utf-8")
    with _replacing(Path(path)) as stream:
        stream.write(data)


# ---------------------------------------------------------------------------------------------
# Paths


def _split_key(path: str | os.PathLike[str], key: str | None) -> tuple[Path, str | None]:
    text = os.fspath(path)
    head, colon, tail = text.rpartition(".npz:")
    if colon and tail and not os.path.exists(text):
        if key is not None and key != tail:
            raise ValueError(f"{text}: the path names the array {tail!r}, but key={key!r}")
        return Path(head + ".npz"), tail
    return Path(text), key


def _extension(file: Path, label: str) -> str:
    extension = file.suffix.lower()
    if file.is_dir():
        raise ValueError(f"{label}: is a folder; a file is expected")
    if extension not in EXTENSIONS:
        raise ValueError(
            f"{label}: unknown extension {extension!r}; expected one of {', '.join(EXTENSIONS)}"
        )
    return extension


def _require_file(file: Path, label: str) -> None:
    if not file.exists():
        raise FileNotFoundError(f"{label}: no such file")
    if not file.is_file():
        raise ValueError(f"{label}: is not a regular file")
    if file.stat().st_size == 0:
        raise ValueError(f"{label}: is empty (0 bytes)")


@contextmanager
def _replacing(file: Path) -> Iterator[IO[bytes]]:
    # A link keeps pointing where it did: its target is what gets replaced.
    file = Path(os.path.realpath(file))
    if file.is_dir():
        raise ValueError(f"{file}: is a folder; a file name is expected")
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------
# NumPy's formats


def _read_npy(file: Path, label: str, mmap: bool, memory_limit: int) -> np.ndarray:
    with open(file, "rb") as stream:
        _check_npy_header(stream, file.stat().st_size, label, None if mmap else memory_limit)
    try:
        return np.load(file, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{label}: cannot be read as .npy: {error}") from error


def _read_npz(file: Path, label: str, key: str | None, memory_limit: int) -> np.ndarray:
    try:
        with zipfile.ZipFile(file) as archive:
            members = {
                info.filename.removesuffix(".npy"): info
                for info in archive.infolist()
                if info.filename.endswith(".npy")
            }
            info = members[_choose_key(list(members), key, label)]
            with archive.open(info) as stream:
                _check_npy_header(stream, info.file_size, label, memory_limit)
            with archive.open(info) as stream:
                return np.lib.format.read_array(stream, allow_pickle=False)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{label}: is not a readable .npz archive, or is cut off: {error}"
        ) from error


def _choose_key(keys: list[str], key: str | None, label: str) -> str:
    if not keys:
        raise ValueError(f"{label}: holds no array")
    if key is None and len(keys) > 1:
        raise ValueError(
            f"{label}: holds {len(keys)} arrays; say which, as in '….npz:{keys[0]}' "
            f"(there are {', '.join(keys)})"
        )
    if key is not None and key not in keys:
        raise ValueError(f"{label}: holds no array {key!r}; there are {', '.join(keys)}")
    return keys[0] if key is None else key


def _check_npy_header(stream: Any, size: int, label: str, memory_limit: int | None) -> None:
    """Refuse a wrong magic, an object array, or a shape that the file's size cannot hold."""
    try:
        version = np.lib.format.read_magic(stream)
    except ValueError as error:
        raise ValueError(
            f"{label}: is not in NumPy's .npy format (wrong first bytes, or cut off)"
        ) from error
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{label}: .npy version {version} is not one that holds a plain array")
    read = np.lib.format.read_array_header_1_0
    if version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(stream)
    except ValueError as error:
        raise ValueError(f"{label}: the .npy header is damaged or cut off: {error}") from error
    _require_real(dtype, label)
    declared = math.prod(shape) * dtype.itemsize
    held = size - stream.tell()
    if any(length < 0 for length in shape) or declared != held:
        raise ValueError(
            f"{label}: the header declares shape {shape} and dtype {dtype}, {declared} bytes, "
            f"but {held} bytes of data follow; the file is cut off or damaged"
        )
    _require_within(shape, declared, memory_limit, label)


# ---------------------------------------------------------------------------------------------
# Comma-separated values


def _read_csv(file: Path, label: str) -> np.ndarray:
    rows: list[list[float]] = []
    width: int | None = None
    header_line = 0
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            for cells in reader:
                if not any(cell.strip() for cell in cells) and len(cells) <= 1:
                    continue
                line = reader.line_num
                if width is not None and len(cells) != width:
                    raise ValueError(
                        f"{label}: line {line} has {len(cells)} cells, but the lines before it "
                        f"have {width}"
                    )
                first, width = width is None, len(cells)
                if first and all(_number(cell) is None for cell in cells):
                    header_line = line
                    continue
                rows.append(_numbers(cells, line, label))
    except UnicodeDecodeError as error:
        raise ValueError(f"{label}: is not a text file in UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{label}: line {reader.line_num}: {error}") from error
    if not rows:
        what = f"a header in line {header_line}, but no numbers" if header_line else "no numbers"
        raise ValueError(f"{label}: holds {what}; comma-separated numbers are expected")
    return np.array(rows, dtype=np.float64)


def _number(cell: str) -> float | None:
    # Python's float() also reads "1_000", which no table means.
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _numbers(cells: list[str], line: int, label: str) -> list[float]:
    values = []
    for column, cell in enumerate(cells, start=1):
        value = _number(cell)
        where = f"{label}: line {line}, column {column}"
        if value is None:
            hint = "; cells must be separated by commas" if {";", "\t"} & set(cell) else ""
            raise ValueError(f"{where}: {cell!r} is not a number{hint}")
        if not math.isfinite(value):
            raise ValueError(f"{where}: {cell.strip()!r} is not finite")
        values.append(value)
    return values


# ---------------------------------------------------------------------------------------------
# Matrix Market


def _read_mtx(file: Path, label: str, memory_limit: int) -> np.ndarray:
    with open(file, "rb") as stream:
        if stream.read(len(_MATRIX_MARKET_MAGIC)).lower() != _MATRIX_MARKET_MAGIC.lower():
            raise ValueError(
                f"{label}: is not a Matrix Market file; its first line must begin with "
                "'%%MatrixMarket'"
            )
    rows, columns, *rest = _matrix_market(scipy.io.mminfo, file, label)
    _check_mtx_header(file, rows, columns, *rest, label)
    _require_within((rows, columns), 8 * rows * columns, memory_limit, label)
    matrix = _matrix_market(scipy.io.mmread, file, label)
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def _matrix_market(read: Callable[[Path], Any], file: Path, label: str) -> Any:
    # SciPy's reader raises a different type for each kind of damage.
    try:
        return read(file)
    except (ValueError, TypeError, OverflowError, MemoryError, IndexError) as error:
        raise ValueError(f"{label}: cannot be read as Matrix Market: {error}") from error


def _check_mtx_header(
    file: Path,
    rows: int,
    columns: int,
    entries: int,
    layout: str,
    field: str,
    symmetry: str,
    label: str,
) -> None:
    if field not in ("real", "double", "integer", "unsigned-integer", "pattern"):
        raise ValueError(f"{label}: holds {field} numbers; real numbers are expected")
    if symmetry != "general" and rows != columns:
        raise ValueError(f"{label}: is declared {symmetry} but has shape ({rows}, {columns})")
    # The shortest line of each layout: "0\n", "1 1\n" (pattern), "1 1 0\n".
    if layout == "array":
        written = rows * columns if symmetry == "general" else rows * (rows - 1) // 2
        shortest = 2
    else:
        written, shortest = entries, 4 if field == "pattern" else 6
    size = file.stat().st_size
    if shortest * written - 1 > size:
        raise ValueError(
            f"{label}: the header declares {written} entries, more than {size} bytes can hold; "
            "the file is cut off or damaged"
        )


# ---------------------------------------------------------------------------------------------
# What an array must be


def _require_real(dtype: np.dtype, label: str) -> None:
    if dtype.hasobject:
        raise ValueError(
            f"{label}: holds Python objects, which are not unpickled; save plain numbers instead"
        )
    if dtype.kind not in "fiub":
        raise ValueError(f"{label}: has dtype {dtype}; real numbers are expected")


def _require_within(
    shape: tuple[int, ...], size: int, memory_limit: int | None, label: str
) -> None:
    if memory_limit is not None and size > memory_limit:
        raise ValueError(
            f"{label}: shape {shape} needs {size / 2**30:.1f} GiB as a dense array, above "
            f"memory_limit = {memory_limit / 2**30:.1f} GiB"
        )


def _require_finite(array: np.ndarray, label: str) -> None:
    # In slabs, so that a mapped file is never held as a whole.
    if array.ndim == 0 or array.dtype.kind != "f":
        slabs = [(0, array[None])] if array.dtype.kind == "f" else []
    else:
        rows = max(1, 2**22 // max(1, math.prod(array.shape[1:])))
        slabs = [(i, array[i : i + rows]) for i in range(0, array.shape[0], rows)]
    for start, slab in slabs:
        finite = np.isfinite(slab)
        if not finite.all():
            first = np.argwhere(~finite)[0]
            index = ", ".join(str(i) for i in [start + first[0], *first[1:]])
            raise ValueError(
                f"{label}: entry [{index}] (counted from 0) is {slab[tuple(first)]}; "
                "finite numbers are expected"
            )


def _as_real_finite(array: np.ndarray, label: str) -> np.ndarray:
    _require_real(array.dtype, label)
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{label}: holds an array of shape {array.shape}; numbers are expected")
    _require_finite(array, label)
    if array.dtype.kind != "f":
        return array.astype(np.float64)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array
