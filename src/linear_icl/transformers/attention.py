"""Linear attention, four-matrix and merged, on column tokens and on row tokens.

A prompt is X = [[A, C], [B, D]] with the block D to predict, and it can be cut in two ways.

Column tokens (a token is an example, e_j = (x_j; y_j)); sums run over the examples only:

* :func:`linear_attention`: Δe_i = W_P Σ_j ⟨W_Q e_i, W_K e_j⟩ W_V e_j;
* :func:`merged_attention`: Δe_i = Σ_h Σ_j (e_jᵀ Q_h e_i) P_h e_j, with the matrices of
  :func:`merge`, Q = W_KᵀW_Q and P = W_P W_V;
* :func:`column_layer` and :func:`column_stack`: the same on the blocks A, B, C, D.

Row tokens (a token is a feature or an output across all examples); keys and values are the
first d rows only:

* :func:`row_attention`: ΔZ = Σ_h ((Z W_Q)(Z W_K)ᵀ ⊙ M) Z W_V W_Pᵀ;
* :func:`merged_row_attention`: the same with W_QK = W_Q W_Kᵀ and W_VP = W_V W_Pᵀ of
  :func:`merge_rows`;
* :func:`row_layer` and :func:`row_stack`: the same on the blocks A, B, C, D;
* :func:`distributed_attention` and :func:`distributed_stack`: one head a machine.

A stack holds −D: attention moves C and D with one sign, so the prediction is
:func:`read_out` of the last D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from array_api_compat import array_namespace, is_array_api_obj

from linear_icl._arrays import Array, as_arrays, broadcast_batch, check_shapes, transpose

Blocks = tuple[Array, Array, Array, Array]


def linear_attention(
    E: Any, W_Q: Any, W_K: Any, W_V: Any, W_P: Any, *, examples: int | None = None
) -> Array:
    """What four-matrix linear attention adds to column tokens.

    Δe_i = Σ_h W_P Σ_j ⟨W_Q e_i, W_K e_j⟩ W_V e_j, the sum over j running over the examples.

    Parameters
    ----------
    E : array, shape (…, D, N)
        Tokens as columns, e_j = (x_j; y_j), D = d + d'. NumPy or torch, float32 or float64.
    W_Q, W_K : array, shape (k, D) or (heads, k, D)
        Queries and keys; several heads as a leading axis or a list.
    W_V : array, shape (v, D) or (heads, v, D)
        Values.
    W_P : array, shape (D, v) or (heads, D, v)
        Output projection.
    examples : int, optional
        The first so many columns are attended to; default all N.

    Returns
    -------
    array, shape (…, D, N)
        ΔE; the layer is E + ΔE.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    von Oswald et al. (2023), equation 1 without softmax.

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import attention
    >>> E = np.array([[1.0, 2.0, 1.0], [1.0, 1.0, 0.0]])  # two examples and a query
    >>> attention.linear_attention(E, *[np.eye(2)] * 4, examples=2)
    array([[ 8., 13.,  5.],
           [ 5.,  8.,  3.]])
    """
    _, E, *weights = _tokens_and_heads("E", E, W_Q=W_Q, W_K=W_K, W_V=W_V, W_P=W_P)
    _check_widths(E.shape[-2], [(1, weights[0], "W_Q"), (1, weights[1], "W_K")])
    _check_widths(E.shape[-2], [(1, weights[2], "W_V"), (0, weights[3], "W_P")])
    X = E[..., : _count(examples, E)]
    return sum(
        W_P @ (W_V @ X) @ (transpose(W_K @ X) @ (W_Q @ E))
        for W_Q, W_K, W_V, W_P in _each_head(*weights)
    )


def merged_attention(E: Any, Q: Any, P: Any, *, examples: int | None = None) -> Array:
    """What merged linear attention adds to column tokens: Δe_i = Σ_h Σ_j (e_jᵀ Q_h e_i) P_h e_j.

    Parameters
    ----------
    E : array, shape (…, D, N)
        Tokens as columns.
    Q, P : array, shape (D, D) or (heads, D, D)
        Merged weights Q = W_KᵀW_Q and P = W_P W_V, see :func:`merge`.
    examples : int, optional
        The first so many columns are attended to; default all N.

    Returns
    -------
    array, shape (…, D, N)
        ΔE = Σ_h P_h (Σ_j e_j e_jᵀ) Q_h E.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    Vladymyrov et al. (2024), section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import attention
    >>> E = np.array([[1.0, 2.0, 1.0], [1.0, 1.0, 0.0]])
    >>> attention.merged_attention(E, np.eye(2), np.eye(2), examples=2)
    array([[ 8., 13.,  5.],
           [ 5.,  8.,  3.]])
    """
    _, E, Q, P = _tokens_and_heads("E", E, Q=Q, P=P)
    _check_widths(E.shape[-2], [(0, Q, "Q"), (1, Q, "Q"), (0, P, "P"), (1, P, "P")])
    return _merged_columns(E, Q, P, _count(examples, E))


def merge(W_Q: Any, W_K: Any, W_V: Any, W_P: Any) -> tuple[Array, Array]:
    """The merged weights of column-token attention: Q = W_KᵀW_Q and P = W_P W_V.

    Parameters
    ----------
    W_Q, W_K, W_V, W_P : array
        As in :func:`linear_attention`, with or without a leading axis of heads.

    Returns
    -------
    tuple of arrays
        Q and P, shape (D, D) or (heads, D, D).

    Examples
    --------
    >>> from linear_icl.transformers import attention
    >>> Q, P = attention.merge([[1, 2]], [[3, 4]], [[2, 0]], [[1], [3]])
    >>> Q.tolist(), P.tolist()
    ([[3.0, 6.0], [4.0, 8.0]], [[2.0, 0.0], [6.0, 0.0]])
    """
    _, W_Q, W_K, W_V, W_P = as_arrays(**_listed(W_Q=W_Q, W_K=W_K, W_V=W_V, W_P=W_P))
    return transpose(W_K) @ W_Q, W_P @ W_V


def column_layer(A: Any, B: Any, C: Any, D: Any, Q: Any, P: Any) -> Blocks:
    """One column-token layer on the blocks of a prompt: E ← E + ΔE with E = [[A, C], [B, D]].

    Parameters
    ----------
    A, B, C, D : array, shapes (…, d, n), (…, d', n), (…, d, n'), (…, d', n')
        The blocks; examples are (A; B), the query tokens (C; D) are never attended to.
    Q, P : array, shape (d + d', d + d') or (heads, d + d', d + d')
        Merged weights.

    Returns
    -------
    tuple of arrays
        A, B, C, D after the layer.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    Vladymyrov et al. (2024), section 3.

    Examples
    --------
    >>> from linear_icl.transformers import attention
    >>> blocks = attention.column_layer(  # one GD step of size 1, held as −D
    ...     [[2.0]], [[4.0]], [[1.0]], [[0.0]], [[1, 0], [0, 0]], [[0, 0], [0, -1]]
    ... )
    >>> [block.tolist() for block in blocks]
    [[[2.0]], [[-12.0]], [[1.0]], [[-8.0]]]
    """
    return column_stack(A, B, C, [(Q, P)], D=D)[-1]


def column_stack(A: Any, B: Any, C: Any, layers: Sequence[Any], *, D: Any = None) -> list[Blocks]:
    """The blocks of a prompt before the first column-token layer and after each one.

    Parameters
    ----------
    A, B, C : array, shapes (…, d, n), (…, d', n), (…, d, n')
        The blocks of the prompt.
    layers : sequence of pairs (Q, P)
        Merged weights, one pair a layer.
    D : array, shape (…, d', n'), optional
        Start of the block to predict; default 0.

    Returns
    -------
    list of tuples (A, B, C, D)
        One more than there are layers. The prediction is −D: :func:`read_out`.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    Examples
    --------
    >>> from linear_icl.transformers import attention, constructions
    >>> layers = constructions.gradient_descent(d=1, d_out=1, steps=[0.125, 0.125])
    >>> states = attention.column_stack([[2]], [[4]], [[1]], layers)
    >>> [float(attention.read_out(blocks)[0, 0]) for blocks in states]
    [-0.0, 1.0, 1.5]
    """
    A, B, C, D = blocks = _blocks(A, B, C, D)
    E, n, d = _prompt(blocks), A.shape[-1], A.shape[-2]
    pairs = [_tokens_and_heads("E", E, Q=Q, P=P)[2:] for Q, P in layers]
    for Q, P in pairs:
        _check_widths(E.shape[-2], [(0, Q, "Q"), (1, Q, "Q"), (0, P, "P"), (1, P, "P")])
    states = [blocks]
    for Q, P in pairs:
        E = E + _merged_columns(E, Q, P, n)
        states.append(_cut(E, d, n))
    return states


def row_attention(Z: Any, W_Q: Any, W_K: Any, W_V: Any, W_P: Any, d: int) -> Array:
    """What four-matrix linear attention adds to row tokens.

    ΔZ = Σ_h ((Z W_Q)(Z W_K)ᵀ ⊙ M) Z W_V W_Pᵀ with the mask M = [1, 0] of d columns of ones:
    only the first d rows of Z, those of [A C], act as keys and values.

    Parameters
    ----------
    Z : array, shape (…, d + d', N)
        Tokens as rows.
    W_Q, W_K : array, shape (N, k) or (heads, N, k)
        Queries and keys.
    W_V, W_P : array, shape (N, v) or (heads, N, v)
        Values and output projection.
    d : int
        Rows that may be attended to.

    Returns
    -------
    array, shape (…, d + d', N)
        ΔZ; the layer is Z + ΔZ.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    Lutz et al. (2025), section 3 (masked linear attention).

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import attention
    >>> Z = np.array([[2.0, 1.0], [4.0, 0.0]])  # A = 2, B = 4, C = 1
    >>> attention.row_attention(Z, *[np.eye(2)] * 4, d=1)
    array([[10.,  5.],
           [16.,  8.]])
    """
    xp, Z, *weights = _tokens_and_heads("Z", Z, W_Q=W_Q, W_K=W_K, W_V=W_V, W_P=W_P)
    names = ("W_Q", "W_K", "W_V", "W_P")
    _check_widths(Z.shape[-1], [(0, W, name) for W, name in zip(weights, names, strict=True)])
    _check_features(d, Z)
    key = xp.arange(Z.shape[-2], device=Z.device) < d
    M = xp.astype(key, Z.dtype)  # one row of the mask; every token has the same
    return sum(
        (((Z @ W_Q) @ transpose(Z @ W_K)) * M) @ (Z @ W_V) @ transpose(W_P)
        for W_Q, W_K, W_V, W_P in _each_head(*weights)
    )


def merged_row_attention(Z: Any, W_QK: Any, W_VP: Any, d: int) -> Array:
    """What merged linear attention adds to row tokens: ΔZ = Σ_h (Z W_QK Kᵀ) K W_VP, K = [A C].

    Parameters
    ----------
    Z : array, shape (…, d + d', N)
        Tokens as rows; K is the first d of them.
    W_QK, W_VP : array, shape (N, N) or (heads, N, N)
        W_QK = W_Q W_Kᵀ and W_VP = W_V W_Pᵀ, see :func:`merge_rows`.
    d : int
        Rows that may be attended to.

    Returns
    -------
    array, shape (…, d + d', N)
        ΔZ.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    Lutz et al. (2025), section 4 (the matrices W_QK and W_VP that unrolling reads).

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import attention
    >>> Z = np.array([[2.0, 1.0], [4.0, 0.0]])
    >>> attention.merged_row_attention(Z, np.eye(2), np.eye(2), d=1)
    array([[10.,  5.],
           [16.,  8.]])
    """
    _, Z, W_QK, W_VP = _tokens_and_heads("Z", Z, W_QK=W_QK, W_VP=W_VP)
    _check_rows(Z, W_QK, W_VP)
    _check_features(d, Z)
    return _merged_rows(Z, W_QK, W_VP, d)


def merge_rows(W_Q: Any, W_K: Any, W_V: Any, W_P: Any) -> tuple[Array, Array]:
    """The merged weights of row-token attention: W_QK = W_Q W_Kᵀ and W_VP = W_V W_Pᵀ.

    Parameters
    ----------
    W_Q, W_K, W_V, W_P : array
        As in :func:`row_attention`, with or without a leading axis of heads.

    Returns
    -------
    tuple of arrays
        W_QK and W_VP, shape (N, N) or (heads, N, N).

    Examples
    --------
    >>> from linear_icl.transformers import attention
    >>> W_QK, W_VP = attention.merge_rows([[1], [0]], [[2], [0]], [[0], [3]], [[0], [1]])
    >>> W_QK.tolist(), W_VP.tolist()
    ([[2.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 3.0]])
    """
    _, W_Q, W_K, W_V, W_P = as_arrays(**_listed(W_Q=W_Q, W_K=W_K, W_V=W_V, W_P=W_P))
    return W_Q @ transpose(W_K), W_V @ transpose(W_P)


def row_layer(A: Any, B: Any, C: Any, D: Any, W_QK: Any, W_VP: Any) -> Blocks:
    """One row-token layer on the blocks of a prompt: Z ← Z + ΔZ with Z = [[A, C], [B, D]].

    Parameters
    ----------
    A, B, C, D : array, shapes (…, d, n), (…, d', n), (…, d, n'), (…, d', n')
        The blocks; the d rows of [A C] are the keys and values.
    W_QK, W_VP : array, shape (n + n', n + n') or (heads, n + n', n + n')
        Merged weights.

    Returns
    -------
    tuple of arrays
        A, B, C, D after the layer.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    Examples
    --------
    >>> from linear_icl.transformers import attention
    >>> blocks = attention.row_layer(
    ...     [[2.0]], [[4.0]], [[1.0]], [[0.0]], [[1, 0], [0, 0]], [[0, 0], [0, -0.25]]
    ... )
    >>> [block.tolist() for block in blocks]
    [[[2.0]], [[4.0]], [[0.0]], [[-2.0]]]
    """
    return row_stack(A, B, C, [(W_QK, W_VP)], D=D)[-1]


def row_stack(A: Any, B: Any, C: Any, layers: Sequence[Any], *, D: Any = None) -> list[Blocks]:
    """The blocks of a prompt before the first row-token layer and after each one.

    Parameters
    ----------
    A, B, C : array, shapes (…, d, n), (…, d', n), (…, d, n')
        The blocks of the prompt.
    layers : sequence of pairs (W_QK, W_VP)
        Merged weights, one pair a layer.
    D : array, shape (…, d', n'), optional
        Start of the block to predict; default 0.

    Returns
    -------
    list of tuples (A, B, C, D)
        One more than there are layers. The prediction is −D: :func:`read_out`.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    Examples
    --------
    >>> from linear_icl.transformers import attention, constructions
    >>> layers = constructions.eagle(n=1, n_query=1, eta_rho=[1 / 12], gamma_rho=[1 / 4])
    >>> states = attention.row_stack([[2]], [[4]], [[1]], layers)
    >>> [float(attention.read_out(blocks)[0, 0]) for blocks in states]
    [-0.0, 2.0]
    """
    A, B, C, D = blocks = _blocks(A, B, C, D)
    Z, n, d = _prompt(blocks), A.shape[-1], A.shape[-2]
    pairs = [_tokens_and_heads("Z", Z, W_QK=W_QK, W_VP=W_VP)[2:] for W_QK, W_VP in layers]
    for W_QK, W_VP in pairs:
        _check_rows(Z, W_QK, W_VP)
    states = [blocks]
    for W_QK, W_VP in pairs:
        Z = Z + _merged_rows(Z, W_QK, W_VP, d)
        states.append(_cut(Z, d, n))
    return states


def distributed_attention(X: Any, W_QK: Any, W_VP: Any, d: int) -> Array:
    """What one head a machine adds to the blocks X_μ = [[A_μ, C], [B_μ, D]].

    ΔX_ν = Σ_μ (X_μ W_QK^μ K_μᵀ) K_μ W_VP^{μν}, K_μ = [A_μ C]: head μ reads its own block, and
    what it sends to machine ν is what W_VP^{μν} lets through. It is :func:`row_attention` on
    [X_1 … X_M] with M heads whose W_Q, W_K, W_V are zero outside block μ.

    Parameters
    ----------
    X : array, shape (…, M, d + d', n_μ + n')
        The machines' blocks.
    W_QK : array, shape (N, N) or (M, N, N) with N = n_μ + n'
        Shared by all machines, or one each.
    W_VP : array, shape (M, M, N, N)
        ``W_VP[μ, ν]`` carries what machine μ has mixed to machine ν.
    d : int
        Rows that may be attended to.

    Returns
    -------
    array, shape (…, M, d + d', n_μ + n')
        ΔX.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    Lutz et al. (2025), appendix B (distributed regime).

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import attention
    >>> X = np.array([[[2.0, 1.0], [4.0, 0.0]], [[1.0, 1.0], [2.0, 0.0]]])
    >>> only_query = np.diag([0.0, 1.0])
    >>> W_VP = np.broadcast_to(only_query, (2, 2, 2, 2))
    >>> attention.distributed_attention(X, np.diag([1.0, 0.0]), W_VP, d=1)
    array([[[ 0.,  5.],
            [ 0., 10.]],
    <BLANKLINE>
           [[ 0.,  5.],
            [ 0., 10.]]])
    """
    _, X, W_QK, W_VP = as_arrays(X=X, W_QK=W_QK, W_VP=W_VP)
    _check_machines(X, W_QK, W_VP)
    _check_features(d, X)
    return _sent(X, W_QK, W_VP, d)


def distributed_stack(
    parts: Sequence[Any], C: Any, layers: Sequence[Any], *, D: Any = None
) -> list[Array]:
    """The machines' blocks before the first layer and after each one.

    Parameters
    ----------
    parts : sequence of M pairs (A_μ, B_μ)
        Shapes (…, d, n_μ) and (…, d', n_μ), the same n_μ on every machine.
    C : array, shape (…, d, n')
        Query features, known to every machine.
    layers : sequence of pairs (W_QK, W_VP)
        As in :func:`distributed_attention`, one pair a layer.
    D : array, shape (…, d', n'), optional
        Start of the block to predict; default 0.

    Returns
    -------
    list of arrays, shape (…, M, d + d', n_μ + n')
        One more than there are layers. The prediction is the mean over the machines of their
        blocks −D.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    Examples
    --------
    >>> from linear_icl.transformers import attention, constructions
    >>> layers = constructions.eagle_distributed(1, 1, 2, eta_rho=[1 / 3], gamma_rho=[1.0])
    >>> X = attention.distributed_stack([([[1]], [[2]]), ([[1]], [[2]])], [[1]], layers)
    >>> X[-1][..., -1].tolist()  # the columns (C; D) of both machines
    [[0.0, -2.0], [0.0, -2.0]]
    """
    machines = [_blocks(A_mu, B_mu, C, D) for A_mu, B_mu in parts]
    if not machines or len({A.shape for A, *_ in machines}) > 1:
        shapes = [tuple(A.shape) for A, *_ in machines]
        raise ValueError(f"parts must hold blocks A_μ of one shape, at least one; got {shapes}")
    d = machines[0][0].shape[-2]
    X = array_namespace(machines[0][0]).stack([_prompt(blocks) for blocks in machines], axis=-3)
    pairs = [as_arrays(X=X, W_QK=W_QK, W_VP=W_VP)[2:] for W_QK, W_VP in layers]
    for W_QK, W_VP in pairs:
        _check_machines(X, W_QK, W_VP)
    states = [X]
    for W_QK, W_VP in pairs:
        X = X + _sent(X, W_QK, W_VP, d)
        states.append(X)
    return states


def read_out(blocks: Blocks) -> Array:
    """The prediction that a state (A, B, C, D) holds: −D, as attention moves D down.

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import attention
    >>> attention.read_out((np.eye(1), np.eye(1), np.eye(1), np.array([[-3.0]])))
    array([[3.]])
    """
    return -blocks[3]


# The formulas, on arrays that have been checked.


def _merged_columns(E: Array, Q: Array, P: Array, n: int) -> Array:
    gram = E[..., :n] @ transpose(E[..., :n])  # Σ_j e_j e_jᵀ
    return sum(Ph @ gram @ Qh @ E for Qh, Ph in _each_head(Q, P))


def _merged_rows(Z: Array, W_QK: Array, W_VP: Array, d: int) -> Array:
    K = Z[..., :d, :]
    return sum((Z @ QK @ transpose(K)) @ (K @ VP) for QK, VP in _each_head(W_QK, W_VP))


def _sent(X: Array, W_QK: Array, W_VP: Array, d: int) -> Array:
    xp, K = array_namespace(X), X[..., :d, :]
    mixed = (X @ W_QK @ transpose(K)) @ K  # (…, M, d + d', N): nothing has left its machine
    machines = range(X.shape[-3])
    return xp.stack(
        [sum(mixed[..., mu, :, :] @ W_VP[mu, nu, ...] for mu in machines) for nu in machines],
        axis=-3,
    )


# Checks and shapes.


def _listed(**weights: Any) -> dict[str, Any]:
    """A list of heads (arrays) becomes one array with a leading axis."""
    return {
        name: array_namespace(W[0]).stack(list(W))
        if isinstance(W, (list, tuple)) and W and is_array_api_obj(W[0])
        else W
        for name, W in weights.items()
    }


def _tokens_and_heads(name: str, tokens: Any, **weights: Any) -> tuple[Any, ...]:
    """Namespace, tokens and weights, the weights with an axis of heads in front."""
    xp, tokens, *arrays = as_arrays(**{name: tokens}, **_listed(**weights))
    if tokens.ndim < 2:
        raise ValueError(f"{name} must be a matrix of tokens, got shape {tuple(tokens.shape)}")
    shapes = ", ".join(f"{n} {tuple(W.shape)}" for n, W in zip(weights, arrays, strict=True))
    if any(W.ndim not in (2, 3) for W in arrays):
        raise ValueError(f"weights must be matrices, or matrices with an axis of heads: {shapes}")
    arrays = [W[None, ...] if W.ndim == 2 else W for W in arrays]
    if len({W.shape[0] for W in arrays}) > 1:
        raise ValueError(f"the weights differ in their number of heads: {shapes}")
    return xp, tokens, *arrays


def _each_head(*weights: Array) -> list[tuple[Array, ...]]:
    return [tuple(W[head, ...] for W in weights) for head in range(weights[0].shape[0])]


def _check_widths(width: int, entries: list[tuple[int, Array, str]]) -> None:
    for axis, W, name in entries:
        if W.shape[1 + axis] != width:
            where = ("rows", "columns")[axis]
            raise ValueError(
                f"{name} must have {width} {where} to go with these tokens, got shape "
                f"{tuple(W.shape[1:])}"
            )


def _check_rows(Z: Array, W_QK: Array, W_VP: Array) -> None:
    both = [(0, W_QK, "W_QK"), (1, W_QK, "W_QK"), (0, W_VP, "W_VP"), (1, W_VP, "W_VP")]
    _check_widths(Z.shape[-1], both)


def _check_machines(X: Array, W_QK: Array, W_VP: Array) -> None:
    if X.ndim < 3:
        raise ValueError(f"X must have shape (…, M, d + d', n_μ + n'), got {tuple(X.shape)}")
    M, N = X.shape[-3], X.shape[-1]
    if tuple(W_QK.shape) not in {(N, N), (M, N, N)}:
        raise ValueError(
            f"W_QK must have shape ({N}, {N}) or ({M}, {N}, {N}), got {tuple(W_QK.shape)}"
        )
    if tuple(W_VP.shape) != (M, M, N, N):
        raise ValueError(f"W_VP must have shape ({M}, {M}, {N}, {N}), got {tuple(W_VP.shape)}")


def _check_features(d: int, Z: Array) -> None:
    if isinstance(d, bool) or not isinstance(d, int) or not 1 <= d <= Z.shape[-2]:
        raise ValueError(f"d must be a whole number from 1 to {Z.shape[-2]} rows, got {d!r}")


def _count(examples: int | None, E: Array) -> int:
    if examples is None:
        return E.shape[-1]
    if isinstance(examples, bool) or not isinstance(examples, int):
        raise ValueError(f"examples must be a whole number, got {examples!r}")
    if not 0 <= examples <= E.shape[-1]:
        raise ValueError(f"examples must lie between 0 and {E.shape[-1]} tokens, got {examples}")
    return examples


def _blocks(A: Any, B: Any, C: Any, D: Any) -> Blocks:
    """Checked blocks with one common batch; D is 0 unless given."""
    xp, A, B, C, D = as_arrays(A=A, B=B, C=C, D=D, optional=("D",))
    if B.ndim < 2 or C.ndim < 2:
        raise ValueError(
            f"B and C must have shapes (…, d', n) and (…, d, n'), got {tuple(B.shape)} and "
            f"{tuple(C.shape)}"
        )
    check_shapes(A, B, C)
    if D is None:
        D = xp.zeros((B.shape[-2], C.shape[-1]), dtype=A.dtype, device=A.device)
    if tuple(D.shape[-2:]) != (B.shape[-2], C.shape[-1]):
        expected = f"(…, {B.shape[-2]}, {C.shape[-1]})"
        raise ValueError(f"D must have shape {expected}, got {tuple(D.shape)}")
    A, B, C, D = broadcast_batch(xp, A=A, B=B, C=C, D=D)[1]
    return A, B, C, D


def _prompt(blocks: Blocks) -> Array:
    """X = [[A, C], [B, D]]."""
    A, B, C, D = blocks
    xp = array_namespace(A)
    return xp.concat([xp.concat([A, C], axis=-1), xp.concat([B, D], axis=-1)], axis=-2)


def _cut(X: Array, d: int, n: int) -> Blocks:
    return X[..., :d, :n], X[..., d:, :n], X[..., :d, n:], X[..., d:, n:]
