"""Arrays and text in files: read with clear errors, written whole or not at all."""

from __future__ import annotations

import csv
import io
import math
import os
import secrets
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

EXTENSIONS = (".npy", ".npz", ".csv", ".mtx")
MEMORY_LIMIT = 4 * 2**30


def read_array(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    key: str | None = None,
    mmap: bool = False,
    memory_limit: int = MEMORY_LIMIT,
    check_finite: bool = True,
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
    check_finite : bool
        False leaves the look for entries that are not finite, and for whether there are any
        entries, to a caller who goes through the array anyway.

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
    _require_real(array.dtype, label)
    if check_finite:
        if array.ndim == 0 or array.size == 0:
            raise ValueError(
                f"{label}: holds an array of shape {array.shape}; numbers are expected"
            )
        _require_finite(array, label)
    return _as_native_float(array)


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
    with replacing(file) as stream:
        if extension == ".npy":
            np.save(stream, array, allow_pickle=False)
        elif extension == ".npz":
            np.savez(stream, allow_pickle=False, **{key or "array": array})
        elif extension == ".csv":
            for row in array.tolist():
                stream.write((",".join(map(repr, row)) + "\n").encode())
        else:
            rows, columns = array.shape
            stream.write(f"%%MatrixMarket matrix array real general\n{rows} {columns}\n".encode())
            stream.write("".join(f"{x!r}\n" for x in array.T.ravel().tolist()).encode())


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
    with replacing(Path(path)) as stream:
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
def replacing(file: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of ``file`` at the end, if nothing goes wrong before."""
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


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Be the only process at work in ``folder``; ValueError when another one is.

    The system lets go of the lock when the process ends, in whatever way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"another process is at work in {folder}") from None
        yield


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
    with _damage_named(label), zipfile.ZipFile(file) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    keys = [member.removesuffix(".npy") for member in sizes if member.endswith(".npy")]
    member = _choose_key(keys, key, label) + ".npy"
    # The size that the archive declares, so that a small file cannot unfold into a huge one.
    _require_within((sizes[member],), sizes[member], memory_limit, label)
    with _damage_named(label), zipfile.ZipFile(file) as archive:
        stream = io.BytesIO(archive.read(member))
    _check_npy_header(stream, sizes[member], label, memory_limit)
    stream.seek(0)
    with _damage_named(label):
        return np.lib.format.read_array(stream, allow_pickle=False)


@contextmanager
def _damage_named(label: str) -> Iterator[None]:
    # Each kind of damage has its own exception in zipfile, zlib, struct and the system's seek.
    try:
        yield
    except Exception as error:
        raise ValueError(f"{label}: is no readable .npz archive, or is cut off: {error}") from error


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
    except Exception as error:  # a damaged header raises whatever Python's tokenizer does
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
                if any("\0" in cell for cell in cells):
                    raise ValueError(f"{label}: line {line} holds a zero byte; text is expected")
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


# SciPy's reader (1.17) ends the whole process on some damaged files: a zero byte in the body or
# a letter behind the last number. Hence this one.


def _read_mtx(file: Path, label: str, memory_limit: int) -> np.ndarray:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{label}: is not a text file in UTF-8") from error
    first, _, body = text.partition("\n")
    layout, field, symmetry = _mtx_kind(first, label)
    lines = (
        (number, line.split())
        for number, line in enumerate(body.split("\n"), start=2)
        if line.strip() and not line.startswith("%")
    )
    number, size = next(lines, (2, []))
    counts = [_count(cell, number, label) for cell in size]
    if len(counts) != (2 if layout == "array" else 3):
        expected = "rows and columns" if layout == "array" else "rows, columns and entries"
        raise ValueError(f"{label}: line {number} must give {expected}, not {' '.join(size)!r}")
    rows, columns = counts[:2]
    if symmetry != "general" and rows != columns:
        raise ValueError(f"{label}: is declared {symmetry} but has shape ({rows}, {columns})")
    _require_within((rows, columns), 8 * rows * columns, memory_limit, label)
    if layout == "array":
        entries = _array_entries(lines, rows, columns, symmetry, label)
    else:
        entries = _coordinate_entries(lines, rows, columns, counts[2], field, label)
    return _dense(entries, rows, columns, symmetry)


def _mtx_kind(first: str, label: str) -> tuple[str, str, str]:
    words = first.lower().split()
    if not words or words[0] != "%%matrixmarket":
        raise ValueError(
            f"{label}: is not a Matrix Market file; its first line must begin with '%%MatrixMarket'"
        )
    kinds = (
        ("matrix",),
        ("array", "coordinate"),
        ("real", "double", "integer", "unsigned-integer", "pattern"),
        ("general", "symmetric", "skew-symmetric"),
    )
    for word, allowed in zip([*words[1:], "", "", "", ""], kinds, strict=False):
        if word not in allowed:
            raise ValueError(
                f"{label}: line 1 says {word!r}; expected {' or '.join(allowed)} "
                "(real matrices only)"
            )
    return words[2], words[3], words[4]


_Lines = Iterator[tuple[int, list[str]]]
_Entries = list[tuple[int, int, float]]


def _array_entries(lines: _Lines, rows: int, columns: int, symmetry: str, label: str) -> _Entries:
    # Column by column; a symmetric file holds the lower triangle, a skew one less its diagonal.
    first = {"general": lambda j: 0, "symmetric": lambda j: j, "skew-symmetric": lambda j: j + 1}
    places = ((i, j) for j in range(columns) for i in range(first[symmetry](j), rows))
    entries: _Entries = []
    for number, cells in lines:
        place = next(places, None)
        if place is None or len(cells) != 1:
            raise ValueError(
                f"{label}: line {number} is {' '.join(cells)!r}; "
                + ("no further line" if place is None else "one number")
                + f" is expected for shape ({rows}, {columns})"
            )
        entries.append((*place, _numbers(cells, number, label)[0]))
    _require_complete(len(entries), len(entries) + sum(1 for _ in places), label)
    return entries


def _coordinate_entries(
    lines: _Lines, rows: int, columns: int, count: int, field: str, label: str
) -> _Entries:
    entries: _Entries = []
    width = 2 if field == "pattern" else 3
    for number, cells in lines:
        if len(cells) != width or len(entries) == count:
            what = "row and column" if width == 2 else "row, column and value"
            raise ValueError(
                f"{label}: line {number} is {' '.join(cells)!r}; {count} lines with "
                f"{what} are expected"
            )
        i, j = (_count(cell, number, label) for cell in cells[:2])
        if not (1 <= i <= rows and 1 <= j <= columns):
            raise ValueError(
                f"{label}: line {number}: place ({i}, {j}) lies outside shape ({rows}, {columns})"
            )
        value = 1.0 if width == 2 else _numbers(cells[2:], number, label)[0]
        entries.append((i - 1, j - 1, value))
    _require_complete(len(entries), count, label)
    return entries


def _count(cell: str, number: int, label: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) < 19):
        raise ValueError(f"{label}: line {number}: {cell!r} is not a count (0, 1, 2, …)")
    return int(cell)


def _require_complete(found: int, declared: int, label: str) -> None:
    if found != declared:
        raise ValueError(
            f"{label}: the header declares {declared} entries, but {found} follow; "
            "the file is cut off or damaged"
        )


def _dense(entries: _Entries, rows: int, columns: int, symmetry: str) -> np.ndarray:
    matrix = np.zeros((rows, columns))
    if entries:
        places = np.array([entry[:2] for entry in entries]).T
        values = np.array([entry[2] for entry in entries])
        # Entries given twice are summed, as assembled finite elements need it.
        np.add.at(matrix, (places[0], places[1]), values)
        if symmetry != "general":
            off = places[0] != places[1]
            sign = 1 if symmetry == "symmetric" else -1
            np.add.at(matrix, (places[1][off], places[0][off]), sign * values[off])
    return matrix


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


def _as_native_float(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f":
        return array.astype(np.float64)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array
