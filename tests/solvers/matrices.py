"""Matrices with a prescribed spectrum, for the tests of the solvers."""

import numpy as np


def with_singular_values(sigma, d, n, rng):
    """A d × n matrix with the given singular values (padded with zeros) and random vectors."""
    sigma = np.asarray(sigma, dtype=float)
    left = np.linalg.qr(rng.standard_normal((d, d)))[0][:, : len(sigma)]
    right = np.linalg.qr(rng.standard_normal((n, n)))[0][:, : len(sigma)]
    return (left * sigma) @ right.T


def prompt(d, n, kappa, *, d_out=2, n_query=3, rank=None, noise=0.0, seed=0):
    """A, B, C with κ(A) = kappa exactly; labels B = WA + noise; C anywhere in R^d."""
    rng = np.random.default_rng(seed)
    rank = min(d, n) if rank is None else rank
    A = with_singular_values(np.geomspace(1, 1 / kappa, rank), d, n, rng)
    W = rng.standard_normal((d_out, d))
    B = W @ A + noise * rng.standard_normal((d_out, n))
    return A, B, rng.standard_normal((d, n_query))


def relative_error(found, expected):
    """‖found − expected‖ / ‖expected‖."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)
