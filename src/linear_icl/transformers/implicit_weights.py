"""The implicit linear model of a column-token stack: the recursion for (M, u, w, a).

Whatever its weights, a stack of linear attention layers maps every example (x, y) of a prompt
to x^l = M x + y u and y^l = a y − ⟨w, x⟩, and the query to x_t^l = M x_t, y_t^l = −⟨w, x_t⟩:
each layer holds one linear model w, to be read out as −y_t^l, and refines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from array_api_compat import array_namespace

from linear_icl._arrays import Array, as_arrays, broadcast_batch, check_shapes, transpose
from linear_icl.transformers.attention import _check_widths, _each_head, _tokens_and_heads


class ImplicitWeights(NamedTuple):
    """(M, u, w, a) of one layer, with the leading dimensions of the prompts.

    Attributes
    ----------
    M : array, shape (…, d, d)
        x^l = M x + y u.
    u : array, shape (…, d)
        See M.
    w : array, shape (…, d)
        y^l = a y − ⟨w, x⟩; ⟨w, x_t⟩ is the layer's prediction.
    a : array, shape (…)
        See w.
    """

    M: Array
    u: Array
    w: Array
    a: Array


def implicit_weights(A: Any, y: Any, layers: Sequence[Any]) -> list[ImplicitWeights]:
    """The implicit weights before the first layer and after each one.

    Start: M = I, u = 0, w = 0, a = 1. With [[𝒜, b], [cᵀ, δ]] of :func:`layer_blocks`,

    M' = (I + 𝒜)M − b wᵀ,  u' = (I + 𝒜)u + a b,  w' = (1 + δ)w − Mᵀc,  a' = (1 + δ)a + ⟨c, u⟩.

    The tokens that a layer sees follow from (M, u, w, a) themselves: only the moments
    Σ_j e_j e_jᵀ of the prompt enter, never single examples.

    Parameters
    ----------
    A : array, shape (…, d, n)
        Example features, one example a column. NumPy or torch.
    y : array, shape (…, n)
        Scalar labels.
    layers : sequence of pairs (Q, P), shape (d + 1, d + 1) or (heads, d + 1, d + 1)
        Merged weights of each layer.

    Returns
    -------
    list of ImplicitWeights
        One more than there are layers.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    Vladymyrov et al. (2024), theorem 4.1.

    Examples
    --------
    >>> from linear_icl.transformers import constructions, implicit_weights
    >>> layers = constructions.gradient_descent(d=1, d_out=1, steps=[0.125, 0.125])
    >>> [float(state.w[0]) for state in implicit_weights.implicit_weights([[2]], [4], layers)]
    [0.0, 1.0, 1.5]
    """
    xp, A, y = as_arrays(A=A, y=y)
    if y.ndim < 1:
        raise ValueError("y must have shape (…, n), one label an example; got a single number")
    check_shapes(A, y[..., None, :])
    E = xp.concat(broadcast_batch(xp, A=A, y=y[..., None, :])[1], axis=-2)
    G, d = E @ transpose(E), A.shape[-2]
    identity = xp.eye(d + 1, dtype=A.dtype, device=A.device)
    # T = [[M, u], [−wᵀ, a]] carries a token of the prompt to the token of layer l.
    T = xp.broadcast_to(identity, G.shape)
    states = [_parts(T, d)]
    for Q, P in layers:
        blocks = layer_blocks(T @ G @ transpose(T), Q, P)
        states.append(_next(states[-1], *blocks))
        T = _joined(states[-1])
    return states


def layer_blocks(gram: Any, Q: Any, P: Any) -> tuple[Array, Array, Array, Array]:
    """The blocks 𝒜, b, c, δ of Σ_k P_k (Σ_j e_j e_jᵀ) Q_k = [[𝒜, b], [cᵀ, δ]].

    A layer adds 𝒜 x + b y to the features of every token and ⟨c, x⟩ + δ y to its label.

    Parameters
    ----------
    gram : array, shape (…, d + 1, d + 1)
        Σ_j e_j e_jᵀ over the tokens that the layer sees; with Σ, α and λ it is
        [[Σ, α], [αᵀ, λ]].
    Q, P : array, shape (d + 1, d + 1) or (heads, d + 1, d + 1)
        Merged weights.

    Returns
    -------
    tuple of arrays, shapes (…, d, d), (…, d), (…, d), (…)
        𝒜, b, c, δ.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    Vladymyrov et al. (2024), appendix A.

    Examples
    --------
    >>> from linear_icl.transformers import constructions, implicit_weights
    >>> [(Q, P)] = constructions.diagonal(1, 1, [(10, 20, 30, 40)])
    >>> blocks = implicit_weights.layer_blocks([[2.0, 3.0], [3.0, 5.0]], Q, P)
    >>> [block.tolist() for block in blocks]
    [[[20.0]], [60.0], [90.0], 200.0]
    """
    _, gram, Q, P = _tokens_and_heads("gram", gram, Q=Q, P=P)
    _check_widths(gram.shape[-1], [(0, Q, "Q"), (1, Q, "Q"), (0, P, "P"), (1, P, "P")])
    added = sum(Pk @ gram @ Qk for Qk, Pk in _each_head(Q, P))
    return added[..., :-1, :-1], added[..., :-1, -1], added[..., -1, :-1], added[..., -1, -1]


def _next(state: ImplicitWeights, A: Array, b: Array, c: Array, delta: Array) -> ImplicitWeights:
    """One layer of theorem 4.1."""
    M, u, w, a = state
    M_next = M + A @ M - b[..., :, None] * w[..., None, :]
    u_next = u + (A @ u[..., None])[..., 0] + a[..., None] * b
    w_next = (1 + delta)[..., None] * w - (transpose(M) @ c[..., None])[..., 0]
    a_next = (1 + delta) * a + array_namespace(c).sum(c * u, axis=-1)
    return ImplicitWeights(M_next, u_next, w_next, a_next)


def _parts(T: Array, d: int) -> ImplicitWeights:
    return ImplicitWeights(T[..., :d, :d], T[..., :d, d], -T[..., d, :d] + 0.0, T[..., d, d])


def _joined(state: ImplicitWeights) -> Array:
    """T = [[M, u], [−wᵀ, a]]."""
    M, u, w, a = state
    xp = array_namespace(M)
    top = xp.concat([M, u[..., :, None]], axis=-1)
    return xp.concat([top, xp.concat([-w, a[..., None]], axis=-1)[..., None, :]], axis=-2)
