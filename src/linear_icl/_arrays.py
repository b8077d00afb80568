"""What every solver asks of its input, and exact scaling: one place, one set of messages."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj, is_torch_array
from scipy.sparse import issparse

Array = Any  # a NumPy array or a torch tensor


def as_arrays(
    *, check_finite: bool = True, optional: Sequence[str] = (), **named: Any
) -> tuple[Any, ...]:
    """Check the named arrays and bring them to one namespace and one floating dtype.

    Accepts NumPy arrays, torch tensors (not both at once) and nested sequences of numbers;
    integers become float64. The arrays named in ``optional`` may be None, which passes through.
    ``check_finite=False`` leaves the look for non-finite entries to a caller who goes through the
    data anyway. Returns the namespace first, then the arrays in the order given.

    Raises
    ------
    TypeError
        Sparse, masked, complex, half precision or non-numeric input, or NumPy mixed with torch.
    ValueError
        A non-finite entry, or arrays on different devices.
    """
    for name, value in named.items():
        if value is None and name not in optional:
            raise TypeError(f"{name} is None; an array is expected")
    given = {name: _one_array(name, value) for name, value in named.items() if value is not None}
    torch_names = [name for name, a in given.items() if is_torch_array(a)]
    if torch_names and len(torch_names) < len(given):
        like = given[torch_names[0]]
        for name, value in given.items():
            if name in torch_names:
                continue
            if is_array_api_obj(named[name]):
                raise TypeError(
                    f"{name} is a NumPy array but {torch_names[0]} is a torch tensor; "
                    "pass both as NumPy arrays or both as tensors"
                )
            given[name] = array_namespace(like).asarray(value, device=device(like))
    devices = {name: str(device(a)) for name, a in given.items()}
    if len(set(devices.values())) > 1:
        raise ValueError(f"all arrays must be on one device, got {devices}")
    xp = array_namespace(*given.values())
    given = {name: _as_float(name, a, xp, check_finite) for name, a in given.items()}
    dtype = xp.result_type(*given.values())
    arrays = tuple(
        None if value is None else xp.astype(given[name], dtype, copy=False)
        for name, value in named.items()
    )
    return xp, *arrays


def _one_array(name: str, value: Any) -> Array:
    if issparse(value):
        raise TypeError(
            f"{name} is a sparse matrix; this solver works on dense arrays. "
            "Use solvers.cgls or solvers.conjugate_gradient, which take sparse matrices"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; fill or drop the masked entries first")
    if not is_array_api_obj(value) or isinstance(value, np.ndarray):
        try:  # of a subclass such as np.matrix, whose operators mean something else, the array
            value = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"{name} is not a rectangular array of numbers: {error}") from None
    if is_torch_array(value) and str(value.layout) != "torch.strided":
        raise TypeError(f"{name} is a tensor of layout {value.layout}; pass it dense")
    return value


def _as_float(name: str, a: Array, xp: Any, check_finite: bool) -> Array:
    kind = str(a.dtype).removeprefix("torch.")
    if kind in ("float16", "bfloat16"):
        raise TypeError(
            f"{name} is {kind}; a Gram matrix in half precision need not even be positive "
            "definite. Convert it to float32 or float64"
        )
    if "complex" in kind:
        raise TypeError(f"{name} is {kind}; complex data is not supported, split it into parts")
    if kind not in ("float32", "float64"):
        if not xp.isdtype(a.dtype, ("bool", "integral")):
            raise TypeError(f"{name} has dtype {a.dtype}; expected float32, float64 or integers")
        a = xp.astype(a, xp.float64)
    if not check_finite or 0 in a.shape:
        return a
    values = a.detach() if is_torch_array(a) else a
    if not (math.isfinite(xp.max(values)) and math.isfinite(xp.min(values))):
        raise ValueError(f"{name} (shape {tuple(a.shape)}) holds NaN or infinite entries")
    return a


def check_shapes(A: Array, B: Array, C: Array | None = None) -> None:
    """A (…, d, n), B (…, d', n) and C (…, d, n') must fit together."""
    if A.ndim < 2:
        raise ValueError(f"A must have shape (…, d, n), one example a column; got {tuple(A.shape)}")
    n_labels = B.shape[-1] if B.ndim else None
    if n_labels != A.shape[-1]:
        raise ValueError(
            f"B must have one column an example: expected (…, d', {A.shape[-1]}) to go with "
            f"A of shape {tuple(A.shape)}, got {tuple(B.shape)}"
        )
    if C is not None and (C.ndim == 0 or C.shape[-2 if C.ndim > 1 else -1] != A.shape[-2]):
        raise ValueError(
            f"C must have one row a feature: expected (…, {A.shape[-2]}, n') to go with "
            f"A of shape {tuple(A.shape)}, got {tuple(C.shape)}"
        )
    if B.ndim == 1 and (A.ndim > 2 or (C is not None and C.ndim > 2)):
        raise ValueError(
            "a one-dimensional B goes with one prompt; for a batch give B the shape (…, d', n)"
        )


def broadcast_batch(xp: Any, **named: Array) -> tuple[tuple[int, ...], list[Array]]:
    """Broadcast the leading (batch) dimensions of matrices against each other."""
    try:
        batch = np.broadcast_shapes(*(tuple(a.shape[:-2]) for a in named.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {tuple(a.shape)}" for name, a in named.items())
        raise ValueError(f"the batch dimensions do not broadcast: {shapes}") from None
    return batch, [xp.broadcast_to(a, (*batch, *a.shape[-2:])) for a in named.values()]


def broadcast_start(name: str, a: Array, shape: tuple[int, ...]) -> Array:
    """A starting guess broadcast to the shape of the solution."""
    xp = array_namespace(a)
    try:
        return xp.broadcast_to(a, shape)
    except (ValueError, RuntimeError):
        raise ValueError(f"{name} must have shape {shape}, got {tuple(a.shape)}") from None


def check_number(name: str, value: Any, *, above: float = 0.0, strictly: bool = True) -> float:
    """A finite real number above (or, not strictly, at) a bound, as a float."""
    number = _as_real(value)
    if not (math.isfinite(number) and (number > above or (number == above and not strictly))):
        sign = ">" if strictly else ">="
        raise ValueError(f"{name} must be a finite number {sign} {above:g}, got {value!r}")
    return number


def _as_real(value: Any) -> float:
    """A real number as a float; NaN for everything else, arrays of one number included."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_tolerances(
    rtol: float,
    atol: float,
    maxiter: int | None,
    rcond: float | None,
    callback: Callable[[Array], None] | None = None,
) -> None:
    """Refuse tolerances, limits and callbacks that make no sense."""
    check_number("rtol", rtol, strictly=False)
    check_number("atol", atol, strictly=False)
    if rtol == 0 and atol == 0:
        raise ValueError("rtol and atol are both 0; at least one must be positive")
    if maxiter is not None and not (_as_real(maxiter) >= 0 and maxiter % 1 == 0):
        raise ValueError(f"maxiter must be a whole number >= 0 or None, got {maxiter!r}")
    if rcond is not None and not 0 <= _as_real(rcond) < 1:
        raise ValueError(f"rcond must lie in [0, 1) or be None, got {rcond!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function or None, got {callback!r}")


def transpose(a: Array) -> Array:
    """The matrix transpose, in any namespace."""
    return array_namespace(a).matrix_transpose(a)


def to_numpy(a: Array) -> np.ndarray:
    """A float64 copy on the host, without gradient."""
    if is_torch_array(a):
        a = a.detach().cpu().numpy()
    return np.asarray(a, dtype=np.float64)


def like(values: np.ndarray, a: Array) -> Array:
    """Host numbers as an array of the kind, dtype and device of ``a``."""
    xp = array_namespace(a)
    return xp.asarray(np.ascontiguousarray(values), dtype=a.dtype, device=device(a))


def identity_where(where: np.ndarray, matrix: Array) -> Array:
    """Square matrices with the selected members of the batch replaced by the identity."""
    xp = array_namespace(matrix)
    eye = xp.eye(matrix.shape[-1], dtype=matrix.dtype, device=device(matrix))
    return xp.where(xp.asarray(where[..., None, None], device=device(matrix)), eye, matrix)


def power_of_two_scale(a: Array, *, axes: tuple[int, ...] = (-2, -1)) -> np.ndarray:
    """The power of two below max|a| over the given axes (kept as 1); 1 where a is zero.

    Dividing by it is exact, so that cubic formulas neither overflow nor underflow, and the
    solution of a rescaled problem is the rescaled solution to the last bit.
    """
    xp = array_namespace(a)
    shape = [1 if axis - a.ndim in axes else size for axis, size in enumerate(a.shape)]
    if 0 in a.shape:
        return np.ones(shape)
    largest = to_numpy(xp.max(xp.abs(a), axis=axes, keepdims=True))
    exponent = np.where(largest > 0, np.frexp(np.where(largest > 0, largest, 1.0))[1] - 1, 0)
    return np.ldexp(1.0, exponent)


def times_power_of_two(name: str, a: Array, exponent: np.ndarray) -> Array:
    """a · 2^exponent, in steps that neither overflow nor underflow before the product does.

    Raises
    ------
    ValueError
        If the answer called ``name`` is too large for its dtype.
    """
    step = 1000 if a.dtype == array_namespace(a).float64 else 100
    with np.errstate(over="ignore"):
        for _ in range(int(np.abs(exponent).max(initial=0)) // step + 1):
            now = np.clip(exponent, -step, step)
            a, exponent = a * like(np.ldexp(1.0, now), a), exponent - now
    if not bool(array_namespace(a).all(array_namespace(a).isfinite(a))):
        raise ValueError(f"the answer {name} is beyond the range of {a.dtype}: scale A, B or b, C")
    return a


def is_singular(error: Exception) -> bool:
    """Whether it is the LinAlgError of NumPy, or torch's, which is another class of that name."""
    return type(error).__name__ in ("LinAlgError", "_LinAlgError")


def norms(a: Array, axis: int) -> np.ndarray:
    """Euclidean norms along one axis, on the host; tiny numbers count, squares or not."""
    xp = array_namespace(a)
    if 0 in a.shape:
        return to_numpy(xp.linalg.vector_norm(a, axis=axis))
    largest = xp.max(xp.abs(a), axis=axis, keepdims=True)
    usable = (largest > 0) & xp.isfinite(largest)
    unit = xp.where(usable, largest, xp.ones_like(largest))
    return to_numpy(xp.linalg.vector_norm(a / unit, axis=axis) * xp.squeeze(unit, axis=axis))
