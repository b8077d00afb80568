"""Weights with which linear attention runs gradient descent, GD++ and EAGLE exactly.

Every function returns one entry a layer, for the stacks of
:mod:`linear_icl.transformers.attention`: NumPy, float64.

Why a network holds −D. A layer multiplies one matrix of scores into the columns of C and of D
alike, C ← C − γρ AAᵀC and D ← D − γρ BAᵀC: that C shrinks is what makes the method converge,
and D then moves by *minus* the step of gradient descent. Beginning at D = 0 the block is −1
times the prediction in every layer, so the sign is turned once, at the read-out. EAGLE as it
is printed turns the sign of D's update instead; no attention weights do that without a second
head, as the token that carries C and the token that carries D are mixed by the same weights.

Step sizes come as the products ηρ and γρ, since weights are the same for every prompt: ρ is
whatever the weights were set for, see :func:`eagle_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linear_icl._arrays import as_arrays, to_numpy
from linear_icl.transformers.attention import merge_rows

Pair = tuple[np.ndarray, np.ndarray]
Four = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Steps = Sequence[float] | np.ndarray


def von_oswald(W_0: Any, step: float, n: int) -> Four:
    """The four matrices with which one layer takes a gradient step from W_0.

    W_K = W_Q = diag(I, 0), W_V = [[0, 0], [W_0, −I]], W_P = (η/n) I on tokens (x; y): every label
    becomes y − ΔW x, where ΔW = (η/n) Σ_j (y_j − W_0 x_j) x_jᵀ is one step of gradient descent
    on (1/2n) Σ_j ‖y_j − W x_j‖². A query that enters as (x; −W_0 x) leaves as (x; −(W_0 + ΔW) x).

    Parameters
    ----------
    W_0 : array, shape (d', d)
        Weights that the step starts from.
    step : float
        η.
    n : int
        Examples.

    Returns
    -------
    tuple of arrays, shape (d + d', d + d')
        W_Q, W_K, W_V, W_P for :func:`linear_icl.transformers.attention.linear_attention`.

    References
    ----------
    von Oswald et al. (2023), proposition 1.

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import attention, constructions
    >>> E = np.array([[2.0, 1.0], [4.0, 0.0]])  # one example, one query
    >>> weights = constructions.von_oswald([[0.0]], 0.25, n=1)
    >>> E + attention.linear_attention(E, *weights, examples=1)
    array([[ 2.,  1.],
           [ 0., -2.]])
    """
    W_0 = np.atleast_2d(np.asarray(W_0, dtype=np.float64))
    d_out, d = W_0.shape
    reads = _diagonal((d, 1.0), (d_out, 0.0))
    W_V = _diagonal((d, 0.0), (d_out, -1.0))
    W_V[d:, :d] = W_0
    return reads, reads.copy(), W_V, step / n * np.eye(d + d_out)


def gradient_descent(d: int, d_out: int, steps: Steps) -> list[Pair]:
    """Column-token layers that run W ← W + η (B − W A) Aᵀ from W = 0, one step a layer.

    Q = diag(I, 0) and P = diag(0, −η I): labels become residuals B − W A, and the query's
    label is −W C.

    Parameters
    ----------
    d, d_out : int
        Features and outputs.
    steps : sequence of float
        η of every layer, in units of 1/‖A‖².

    Returns
    -------
    list of pairs (Q, P), shape (d + d', d + d')
        For :func:`linear_icl.transformers.attention.column_stack`.

    References
    ----------
    von Oswald et al. (2023), proposition 1.

    Examples
    --------
    >>> from linear_icl.transformers import constructions
    >>> [(Q, P)] = constructions.gradient_descent(d=1, d_out=1, steps=[0.5])
    >>> Q.tolist(), P.tolist()
    ([[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, -0.5]])
    """
    return gd_plus_plus(d, d_out, np.zeros(len(steps)), steps)


def gd_plus_plus(d: int, d_out: int, eta_rho: Steps, gamma_rho: Steps) -> list[Pair]:
    """Column-token layers that run GD++: ω_xx = −ηρ conditions (A, C), ω_yx = −γρ moves (B, D).

    Parameters
    ----------
    d, d_out : int
        Features and outputs.
    eta_rho, gamma_rho : sequence of float
        ηρ and γρ of every layer.

    Returns
    -------
    list of pairs (Q, P), shape (d + d', d + d')
        For :func:`linear_icl.transformers.attention.column_stack`.

    References
    ----------
    von Oswald et al. (2023), appendix A.10; Vladymyrov et al. (2024), section 5.

    Examples
    --------
    >>> from linear_icl.transformers import constructions
    >>> [(Q, P)] = constructions.gd_plus_plus(1, 1, eta_rho=[0.25], gamma_rho=[0.5])
    >>> Q.tolist(), P.tolist()
    ([[1.0, 0.0], [0.0, 0.0]], [[-0.25, 0.0], [0.0, -0.5]])
    """
    return [
        (_diagonal((d, 1.0), (d_out, 0.0)), _diagonal((d, -eta), (d_out, -gamma)))
        for eta, gamma in _layers(eta_rho, gamma_rho)
    ]


def diagonal(d: int, d_out: int, omegas: Sequence[Sequence[float]]) -> list[Pair]:
    """Column-token layers with block-scalar weights (ω_xx, ω_xy, ω_yx, ω_yy), as two heads.

    Head 1 reads features (Q = diag(I, 0), P = diag(ω_xx I, ω_yx I)), head 2 reads labels
    (Q = diag(0, I), P = diag(ω_xy I, ω_yy I)). One head alone forces ω_xx ω_yy = ω_xy ω_yx.

    Parameters
    ----------
    d, d_out : int
        Features and outputs.
    omegas : sequence of (ω_xx, ω_xy, ω_yx, ω_yy)
        One entry a layer.

    Returns
    -------
    list of pairs (Q, P), shape (2, d + d', d + d')
        For :func:`linear_icl.transformers.attention.column_stack`.

    References
    ----------
    Vladymyrov et al. (2024), section 4.2.

    Examples
    --------
    >>> from linear_icl.transformers import constructions
    >>> [(Q, P)] = constructions.diagonal(1, 1, [(-0.1, 0.2, -0.3, 0.4)])
    >>> P[0].tolist(), P[1].tolist()
    ([[-0.1, 0.0], [0.0, -0.3]], [[0.2, 0.0], [0.0, 0.4]])
    """
    reads = np.stack([_diagonal((d, 1.0), (d_out, 0.0)), _diagonal((d, 0.0), (d_out, 1.0))])
    return [
        (reads.copy(), np.stack([_diagonal((d, xx), (d_out, yx)), _diagonal((d, xy), (d_out, yy))]))
        for xx, xy, yx, yy in omegas
    ]


def eagle(
    n: int,
    n_query: int,
    eta_rho: Steps,
    gamma_rho: Steps,
    sketches: Sequence[Any] | None = None,
) -> list[Pair]:
    """Row-token layers that run EAGLE: W_QK = diag(SSᵀ, 0), W_VP = −diag(ηρ SSᵀ, γρ I).

    Parameters
    ----------
    n, n_query : int
        Examples and queries.
    eta_rho, gamma_rho : sequence of float
        ηρ and γρ of every layer. In the names that unrolling reads off a trained network,
        α¹ = 1, α² = −ηρ and α³ = −γρ.
    sketches : sequence of arrays, shape (n, r), optional
        S of every layer (rank-restricted attention); None is the identity.

    Returns
    -------
    list of pairs (W_QK, W_VP), shape (n + n', n + n')
        For :func:`linear_icl.transformers.attention.row_stack`.

    References
    ----------
    Lutz et al. (2025), algorithm 1 and section 4.

    Examples
    --------
    >>> from linear_icl.transformers import constructions
    >>> [(W_QK, W_VP)] = constructions.eagle(1, 1, eta_rho=[0.25], gamma_rho=[0.5])
    >>> W_QK.tolist(), W_VP.tolist()
    ([[1.0, 0.0], [0.0, 0.0]], [[-0.25, 0.0], [0.0, -0.5]])
    """
    return [merge_rows(*four) for four in eagle_factors(n, n_query, eta_rho, gamma_rho, sketches)]


def eagle_factors(
    n: int,
    n_query: int,
    eta_rho: Steps,
    gamma_rho: Steps,
    sketches: Sequence[Any] | None = None,
) -> list[Four]:
    """The layers of :func:`eagle` as four matrices: W_Q = W_K = (S; 0), W_V = diag(S, I).

    The widths are those of the trained models: n + n' for all four without sketches; r for
    queries and keys, r + n' for values and outputs with them.

    Parameters
    ----------
    n, n_query, eta_rho, gamma_rho, sketches
        As in :func:`eagle`.

    Returns
    -------
    list of tuples (W_Q, W_K, W_V, W_P)
        For :func:`linear_icl.transformers.attention.row_attention`;
        W_P = −diag(ηρ S, γρ I).

    References
    ----------
    Lutz et al. (2025), section 4.

    Examples
    --------
    >>> from linear_icl.transformers import constructions
    >>> [four] = constructions.eagle_factors(3, 1, [0.5], [1.0], sketches=[[[1], [0], [0]]])
    >>> [W.shape for W in four]
    [(4, 1), (4, 1), (4, 2), (4, 2)]
    """
    if sketches is None:
        sketches = [np.eye(n)] * len(eta_rho)
        spare = n_query  # idle columns: a trained W_Q is as wide as a token
    else:
        spare = 0
    layers = []
    for eta, gamma, sketch in _layers(eta_rho, gamma_rho, sketches):
        S = np.asarray(sketch, dtype=np.float64)
        if S.ndim != 2 or S.shape[0] != n:
            raise ValueError(f"a sketch must have shape ({n}, r), got {S.shape}")
        reads = _blocks(S, np.zeros((n_query, spare)))
        values = _blocks(S, np.eye(n_query))
        outputs = _blocks(-eta * S, -gamma * np.eye(n_query))
        layers.append((reads, reads.copy(), values, outputs))
    return layers


def eagle_distributed(
    n_machine: int, n_query: int, machines: int, eta_rho: Any, gamma_rho: Any
) -> list[Pair]:
    """Layers of one head a machine that run distributed EAGLE, averaging C and D.

    W_QK = diag(I, 0); W_VP within machine μ is −diag(ηρ_μ I, γρ_μ/M I), and to every other
    machine −diag(0, γρ_μ/M I): A_μ and B_μ stay where they are, only the d + d' rows of the
    query columns travel.

    Parameters
    ----------
    n_machine, n_query, machines : int
        Examples a machine, queries, machines M.
    eta_rho, gamma_rho : array, shape (layers,) or (layers, M)
        ηρ and γρ of every layer, shared by the machines or one each.

    Returns
    -------
    list of pairs (W_QK, W_VP), shapes (N, N) and (M, M, N, N) with N = n_μ + n'
        For :func:`linear_icl.transformers.attention.distributed_stack`.

    References
    ----------
    Lutz et al. (2025), algorithm 2 and appendix B.

    Examples
    --------
    >>> from linear_icl.transformers import constructions
    >>> [(W_QK, W_VP)] = constructions.eagle_distributed(1, 1, 2, [0.25], [1.0])
    >>> W_VP[0, 0].tolist(), W_VP[0, 1].tolist()
    ([[-0.25, 0.0], [0.0, -0.5]], [[0.0, 0.0], [0.0, -0.5]])
    """
    etas, gammas = _per_machine(eta_rho, machines), _per_machine(gamma_rho, machines)
    layers = []
    for eta, gamma in _layers(etas, gammas):
        W_VP = np.zeros((machines, machines, n_machine + n_query, n_machine + n_query))
        for mu in range(machines):
            for nu in range(machines):
                own = eta[mu] if mu == nu else 0.0
                sent = gamma[mu] / machines
                W_VP[mu, nu] = _diagonal((n_machine, -own), (n_query, -sent))
        layers.append((_diagonal((n_machine, 1.0), (n_query, 0.0)), W_VP))
    return layers


def eagle_steps(
    A: Any,
    layers: int,
    *,
    eta: float = 1 / 3,
    gamma: float = 1.0,
    sketches: Sequence[Any] | None = None,
) -> Pair:
    """ηρ and γρ of every layer for given prompts, ρ = 1/max‖A_l S_l‖₂² over the batch.

    A network's weights cannot depend on the prompt: for one prompt this is EAGLE with that
    prompt's ρ, for a batch it is the largest step that every prompt of the batch survives.

    Parameters
    ----------
    A : array, shape (…, d, n)
        Example features.
    layers : int
        Depth.
    eta, gamma : float
        Step sizes in units of ρ.
    sketches : sequence of arrays, shape (n, r), optional
        S of every layer.

    Returns
    -------
    tuple of arrays, shape (layers,)
        ηρ and γρ.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit, or A = 0 in some layer, where ρ is undefined.

    References
    ----------
    Lutz et al. (2025), section 4 (the learned constants belong to the batch maximum).

    Examples
    --------
    >>> from linear_icl.transformers import constructions
    >>> eta_rho, gamma_rho = constructions.eagle_steps([[2, 0], [0, 1]], 2)
    >>> gamma_rho.round(4)
    array([0.25  , 0.5625])
    """
    A = to_numpy(as_arrays(A=A)[1])
    eta_rho, gamma_rho = np.zeros(layers), np.zeros(layers)
    for layer in range(layers):
        S = np.eye(A.shape[-1]) if sketches is None else np.asarray(sketches[layer], np.float64)
        sketched = A @ S
        norm = np.linalg.norm(sketched, ord=2, axis=(-2, -1)).max()
        if not norm > 0:
            raise ValueError(f"A is zero in layer {layer}, so its step 1/‖A‖² is undefined")
        eta_rho[layer], gamma_rho[layer] = eta / norm**2, gamma / norm**2
        A = A - eta_rho[layer] * sketched @ (sketched.mT @ sketched) @ S.T
    return eta_rho, gamma_rho


def _layers(*entries: Any) -> list[tuple[Any, ...]]:
    """The entries of each layer together."""
    if len({len(entry) for entry in entries}) > 1:
        given = " and ".join(str(len(entry)) for entry in entries)
        raise ValueError(f"each layer needs its own ηρ, γρ (and S): got {given} of them")
    return list(zip(*entries, strict=True))


def _diagonal(*parts: tuple[int, float]) -> np.ndarray:
    """diag(s₁ I, s₂ I, …) from pairs (size, s)."""
    return np.diag(np.concatenate([np.full(size, value + 0.0) for size, value in parts]))


def _blocks(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """The block-diagonal matrix of two blocks."""
    zeros = np.zeros
    return np.block(
        [
            [top, zeros((top.shape[0], bottom.shape[1]))],
            [zeros((bottom.shape[0], top.shape[1])), bottom],
        ]
    )


def _per_machine(steps: Any, machines: int) -> np.ndarray:
    steps = np.asarray(steps, dtype=np.float64)
    if steps.ndim not in (1, 2) or (steps.ndim == 2 and steps.shape[1] != machines):
        raise ValueError(
            f"step sizes must have shape (layers,) or (layers, {machines}), got {steps.shape}"
        )
    return np.broadcast_to(steps if steps.ndim == 2 else steps[:, None], (steps.shape[0], machines))
