"""Matrices known by their products: arrays, sparse matrices, LinearOperators, callables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj, is_torch_array
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator

from linear_icl._arrays import Array, like, transpose

Product = Callable[[Array], Array]


def is_scipy(A: Any) -> bool:
    """True for what SciPy multiplies: sparse matrices and operators."""
    return issparse(A) or isinstance(A, LinearOperator)


def is_dense(name: str, A: Any) -> bool:
    """True for a matrix that is given as its entries, False for one known by its products.

    Raises
    ------
    TypeError
        If it is neither.
    """
    if is_array_api_obj(A) or isinstance(A, (list, tuple)):
        return True
    if not (is_scipy(A) or callable(A)):
        raise TypeError(
            f"{name} must be an array, a SciPy sparse matrix, a LinearOperator or a callable, "
            f"got {type(A).__name__}"
        )
    return False


def check_scipy(name: str, A: Any, v_name: str, v: Array) -> None:
    """A sparse matrix or operator must be real and finite, and multiplies NumPy matrices only.

    Raises
    ------
    TypeError, ValueError
        If it is not, or if ``v`` is a tensor or a batch.
    """
    what = "sparse matrix" if issparse(A) else "LinearOperator"
    if A.dtype is not None and np.dtype(A.dtype).kind not in "fiub":
        raise TypeError(f"{name} is a {what} of dtype {A.dtype}; expected real numbers")
    if issparse(A) and not np.isfinite(A.tocoo().data).all():
        raise ValueError(f"{name} (shape {tuple(A.shape)}) holds NaN or infinite entries")
    if is_torch_array(v):
        raise TypeError(
            f"{name} is a SciPy {what} but {v_name} is a torch tensor; pass it as NumPy"
        )
    if v.ndim > 2:
        raise ValueError(
            f"{v_name} must be one- or two-dimensional to go with the {what} {name}, "
            f"got shape {tuple(v.shape)}"
        )


def left_product(A: Any, name: str, vector: bool) -> Product:
    """v ↦ A v for a matrix in any of the accepted forms, v of shape (…, d, k).

    A callable is given what the caller's right-hand side was, a vector or a matrix.
    """
    if is_array_api_obj(A):
        return lambda v: A @ v
    if is_scipy(A):
        return _checked(name, lambda v: A @ v)
    apply = _checked(name, A)
    return (lambda v: apply(v[..., 0])[..., None]) if vector else apply


def right_products(A: Any) -> tuple[Product, Product]:
    """W ↦ W A and R ↦ R Aᵀ."""
    if not is_scipy(A):
        return lambda W: W @ A, lambda R: R @ transpose(A)
    back, forth = (A.T.dot, A.dot) if issparse(A) else (A.rmatmat, A.matmat)
    times_A, times_At = _checked("A", back, A.shape[1]), _checked("A", forth, A.shape[0])
    return lambda W: times_A(W.T).T, lambda R: times_At(R.T).T


def _checked(name: str, product: Callable[[Array], Any], rows: int | None = None) -> Product:
    """A product from outside, held to what a product must be: real, and of the right shape."""

    def apply(v: Array) -> Array:
        expected = tuple(v.shape) if rows is None else (rows, *v.shape[1:])
        try:
            found = product(v)
        except ValueError as error:
            raise ValueError(
                f"{name} failed on an array of shape {tuple(v.shape)}: {error}"
            ) from error
        if not is_array_api_obj(found) or is_torch_array(found) != is_torch_array(v):
            raise TypeError(
                f"{name} must return arrays of the kind it is given, got {type(found).__name__}"
            )
        if tuple(found.shape) != expected:
            raise ValueError(
                f"{name} must map an array of shape {tuple(v.shape)} to one of shape {expected}, "
                f"got {tuple(found.shape)}"
            )
        if str(found.dtype).removeprefix("torch.") not in ("float32", "float64"):
            raise TypeError(f"{name} must return float32 or float64, got {found.dtype}")
        return found

    return apply


def divided(product: Product, scale: np.ndarray) -> Product:
    """The product with a matrix divided by ``scale``."""

    def scaled(v: Array) -> Array:
        return product(v) / like(scale, v)

    return scaled
