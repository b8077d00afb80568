"""Read a trained transformer's weights as an algorithm, and compare the two layer by layer.

linear-icl unroll runs/u0 --figures runs/u0-figures

A trained row-token layer comes down to W_QK ≈ diag(α¹I, 0) and W_VP ≈ diag(α²I, α³I), which is
EAGLE with ηρ = −α¹α² and γρ = −α¹α³ (with SSᵀ in the place of I when attention is
rank-limited, and with α³ alone between machines). Rank-limited networks turn out to read with one
sketch and to write with others, W_VP ≈ diag(α²UVᵀ, α³I). This module reads the three numbers and
the sketches, says how much of the weights they leave out, rebuilds the algorithm and runs it
beside the network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linear_icl import solvers
from linear_icl._arrays import to_numpy
from linear_icl.transformers import attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from linear_icl.transformers.model import LinearTransformer

Pair = tuple[np.ndarray, np.ndarray]


# From weights to scalars.


def merged_weights(model: LinearTransformer) -> list[Pair]:
    """W_QK and W_VP of every layer of a model, float64.

    Parameters
    ----------
    model : LinearTransformer
        Of any regime.

    Returns
    -------
    list of pairs (W_QK, W_VP)
        Shapes (heads, N, N) twice, with N = n + n'; for a distributed model (1, N, N) with
        N = n_μ + n', and (M, M, N, N): what machine μ carries to machine ν.

    References
    ----------
    Lutz et al. (2025), section 4 and appendix B.

    Examples
    --------
    >>> from linear_icl.transformers import model, unrolling
    >>> config = model.ModelConfig(regime="distributed", n=6, machines=3)
    >>> [(W_QK, W_VP), *_] = unrolling.merged_weights(model.LinearTransformer(config))
    >>> W_QK.shape, W_VP.shape
    ((1, 4, 4), (3, 3, 4, 4))
    """
    pairs = []
    for layer in model.layers:
        W_Q, W_K, W_V, W_P = map(to_numpy, (layer.W_Q, layer.W_K, layer.W_V, layer.W_P))
        if model.config.regime == "distributed":
            # W_P of head μ has a block of rows for every machine ν that it writes to.
            machines, width = model.config.machines, model.config.columns
            blocks = W_P.reshape(machines, machines, width, -1)
            pairs.append((W_Q @ W_K.mT, W_V[0] @ blocks.mT))
        else:
            pairs.append(attention.merge_rows(W_Q, W_K, W_V, W_P))
    return pairs


def sparsify(W: Any, factor: float = 1.5) -> np.ndarray:
    """W with every entry of size at most τ = factor · mean|W| set to 0.

    Parameters
    ----------
    W : array
        Any shape.
    factor : float
        In units of the mean absolute entry.

    Returns
    -------
    array
        A copy.

    References
    ----------
    Lutz et al. (2025), section 4.

    Examples
    --------
    >>> from linear_icl.transformers import unrolling
    >>> unrolling.sparsify([[4.0, 0.1], [-0.1, 4.2]])
    array([[4. , 0. ],
           [0. , 4.2]])
    """
    W = np.array(W, dtype=np.float64)
    W[np.abs(W) <= factor * np.abs(W).mean()] = 0.0
    return W


def cluster(W: Any, values: int) -> np.ndarray:
    """W with every entry replaced by the nearest of so many values, one of which is 0.

    The others are the means of their clusters (Lloyd's algorithm in one dimension, begun at
    the quantiles of the entries that are not zero).

    Parameters
    ----------
    W : array
        Any shape; usually sparsified.
    values : int
        Values in all: 2 for W_QK (0 and α¹), 3 for W_VP (0, α² and α³).

    Returns
    -------
    array
        Of the shape of W.

    Raises
    ------
    ValueError
        Fewer than 2 values.

    References
    ----------
    Lutz et al. (2025), section 4.

    Examples
    --------
    >>> from linear_icl.transformers import unrolling
    >>> unrolling.cluster([[4.0, 0.0], [0.0, 4.2]], 2)
    array([[4.1, 0. ],
           [0. , 4.1]])
    """
    if values < 2:
        raise ValueError(f"values must be at least 2 (0 and another), got {values}")
    W = np.asarray(W, dtype=np.float64)
    entries = W[W != 0]
    if entries.size == 0:
        return np.zeros_like(W)
    middles = (np.arange(values - 1) + 0.5) / (values - 1)
    centres = np.concatenate([[0.0], np.quantile(entries, middles)])
    for _ in range(100):
        nearest = np.abs(entries[:, None] - centres).argmin(axis=1)
        moved = centres.copy()
        for k in range(1, values):
            if (nearest == k).any():
                moved[k] = entries[nearest == k].mean()
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres[np.abs(W[..., None] - centres).argmin(axis=-1)]


def quantise(pairs: Sequence[Pair], factor: float = 1.5) -> list[Pair]:
    """Every layer sparsified and clustered: W_QK to two values, W_VP to three.

    Parameters
    ----------
    pairs : sequence of pairs (W_QK, W_VP)
        Merged weights.
    factor : float
        Threshold of :func:`sparsify`.

    Returns
    -------
    list of pairs
        For :func:`forward`.

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import unrolling
    >>> [(W_QK, W_VP)] = unrolling.quantise([(np.diag([2.0, 2.2, 0.1]), np.diag([1.0, 1.2, 3]))])
    >>> np.diag(W_QK), np.diag(W_VP)
    (array([2.1, 2.1, 0. ]), array([1.1, 1.1, 3. ]))
    """
    return [
        (cluster(sparsify(W_QK, factor), 2), cluster(sparsify(W_VP, factor), 3))
        for W_QK, W_VP in pairs
    ]


@dataclasses.dataclass(frozen=True)
class LayerReading:
    """One layer read as W_QK ≈ diag(α¹ SSᵀ, 0), W_VP ≈ diag(α² SSᵀ, α³ I).

    Attributes
    ----------
    alpha1 : array, shape (heads,)
        One entry for a distributed model, whose machines share W_QK.
    alpha2, alpha3 : array, shape (heads, 1), or (M, M) from machine to machine
        α² belongs on the diagonal (A and B do not travel), α³ everywhere.
    sketch : array, shape (n, r), or None
        Orthonormal S of the first head; None is the identity.
    off_pattern : pair of floats
        Share of ‖W_QK‖_F² and of ‖W_VP‖_F² that the pattern leaves out, in [0, 1].
    off_blocks : pair of floats
        Share outside the blocks n × n and n' × n' alone, whatever is in them.
    n : int
        Examples (a machine).
    """

    alpha1: np.ndarray
    alpha2: np.ndarray
    alpha3: np.ndarray
    sketch: np.ndarray | None
    off_pattern: tuple[float, float]
    off_blocks: tuple[float, float]
    n: int

    @property
    def eta_rho(self) -> float:
        """ηρ = −Σ α¹α² over the heads; the mean over the machines of a distributed model."""
        own = np.diag(self.alpha2) if self._distributed else self.alpha2[:, 0]
        products = -self.alpha1 * own
        return float(products.mean() if self._distributed else products.sum())

    @property
    def gamma_rho(self) -> float:
        """γρ = −Σ α¹α³ over the heads or machines that write, averaged over who reads."""
        return float((-self.alpha1[:, None] * self.alpha3).sum(axis=0).mean())

    @property
    def _distributed(self) -> bool:
        return self.alpha2.shape[1] > 1


def read_layer(W_QK: Any, W_VP: Any, n: int, *, rank: int | None = None) -> LayerReading:
    """The scalars (and the sketch) of one layer: the orthogonal projection onto the pattern.

    Parameters
    ----------
    W_QK, W_VP : array
        Merged weights as :func:`merged_weights` gives them, or (N, N) twice.
    n : int
        Examples (a machine): the size of the first block.
    rank : int, optional
        r of a rank-limited model; S is then spanned by the r leading eigenvectors of the
        symmetric part of W_QK's first block.

    Returns
    -------
    LayerReading

    Raises
    ------
    ValueError
        Weights that are not square or do not go together.

    References
    ----------
    Lutz et al. (2025), section 4.

    Examples
    --------
    >>> from linear_icl.transformers import constructions, unrolling
    >>> [(W_QK, W_VP)] = constructions.eagle(4, 1, eta_rho=[0.25], gamma_rho=[0.5])
    >>> reading = unrolling.read_layer(W_QK, W_VP, n=4)
    >>> reading.eta_rho, reading.gamma_rho, reading.off_pattern
    (0.25, 0.5, (0.0, 0.0))
    """
    QK, VP = _by_source(W_QK, W_VP)
    if not 0 < n < QK.shape[-1]:
        raise ValueError(f"n must lie between 1 and {QK.shape[-1] - 1}, got {n}")
    blocks = np.zeros(QK.shape[-2:], dtype=bool)
    blocks[:n, :n] = True
    corners = blocks.copy()
    corners[n:, n:] = True
    S = None
    if rank is not None:
        eigenvalues, vectors = np.linalg.eigh((QK[0] + QK[0].T)[:n, :n] / 2)
        S = vectors[:, np.argsort(-np.abs(eigenvalues))[:rank]]
    basis = np.eye(n) if S is None else S

    def mean_diagonal(W: np.ndarray) -> np.ndarray:
        inside = basis.T @ W @ basis
        return np.trace(inside, axis1=-2, axis2=-1) / basis.shape[1]

    alpha3 = np.trace(VP[..., n:, n:], axis1=-2, axis2=-1) / (QK.shape[-1] - n)
    reading = LayerReading(
        mean_diagonal(QK[..., :n, :n]),
        mean_diagonal(VP[..., :n, :n]),
        alpha3,
        S,
        (0.0, 0.0),
        (_share(QK * ~blocks, QK), _share(VP * ~corners, VP)),
        n,
    )
    pattern_qk, pattern_vp = _by_source(*_pattern(reading, QK.shape[-1]))
    off = _share(QK - pattern_qk, QK), _share(VP - pattern_vp, VP)
    return dataclasses.replace(reading, off_pattern=off)


def rebuild(
    readings: Sequence[LayerReading],
    n_query: int,
    *,
    keep_blocks: Sequence[Pair] | None = None,
    sketches: Sequence[SketchReading] | None = None,
) -> list[Pair]:
    """Weights that hold the pattern and nothing else.

    Parameters
    ----------
    readings : sequence of LayerReading
        One a layer.
    n_query : int
        Queries n'.
    keep_blocks : sequence of pairs (W_QK, W_VP), optional
        Merged weights whose first blocks (n × n) are kept as learned, so that only what lies
        off the blocks is dropped and the query block made scalar: what is exact about a
        rank-limited network even when its sketches are not orthonormal.
    sketches : sequence of SketchReading, optional
        From :func:`read_sketches`, one a layer, of one head. The first block of W_VP is then
        α²UVᵀ, with the sketches that the layer writes with, in the place of α²SSᵀ.

    Returns
    -------
    list of pairs (W_QK, W_VP)
        For :func:`forward`.

    Raises
    ------
    ValueError
        Both ``keep_blocks`` and ``sketches``, or sketches that are not one a layer of one head.

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import constructions, unrolling
    >>> layers = constructions.eagle(4, 1, eta_rho=[0.25, 0.5], gamma_rho=[0.5, 1])
    >>> readings = [unrolling.read_layer(*pair, n=4) for pair in layers]
    >>> rebuilt = unrolling.rebuild(readings, n_query=1)
    >>> all(np.array_equal(a[1], b[1][0]) for a, b in zip(layers, rebuilt))
    True
    """
    pairs = [_pattern(reading, reading.n + n_query) for reading in readings]
    if sketches is not None:
        if keep_blocks is not None:
            raise ValueError("keep_blocks and sketches both say what the first block is: pass one")
        if len(sketches) != len(readings) or any(r.alpha2.shape != (1, 1) for r in readings):
            raise ValueError("sketches must be one a layer, and the layers of one head")
        for (_, VP), sketch, reading in zip(pairs, sketches, readings, strict=True):
            written = sketch.written_alpha2 * sketch.taken @ sketch.changed.T
            VP[..., : reading.n, : reading.n] = written
    if keep_blocks is None:
        return pairs
    for (QK, VP), (kept_QK, kept_VP), reading in zip(pairs, keep_blocks, readings, strict=True):
        n = reading.n
        QK[..., :n, :n] = kept_QK[..., :n, :n]
        own = _own(reading)
        kept = np.asarray(kept_VP)[..., :n, :n]
        VP[..., :n, :n] = kept * own[..., None, None] if VP.ndim == 4 else kept
    return pairs


# Sketches.


def sketches(model: LinearTransformer) -> list[np.ndarray]:
    """The learned sketches of a rank-limited model, for the solvers' ``sketch``.

    Parameters
    ----------
    model : LinearTransformer
        Of the rank-limited regime, one head.

    Returns
    -------
    list of arrays, shape (n, r)
        S of every layer, with orthonormal columns.

    Raises
    ------
    ValueError
        A model of another regime.

    References
    ----------
    Lutz et al. (2025), section 4 (computation-limited regime).

    Examples
    --------
    >>> from linear_icl.transformers import training, unrolling
    >>> model, _ = training.shipped("rank_limited-seed0")
    >>> [S.shape for S in unrolling.sketches(model)]
    [(18, 5), (18, 5), (18, 5), (18, 5)]
    """
    config = model.config
    if config.rank is None or config.heads != 1:
        raise ValueError(f"sketches belong to rank-limited models of one head, not {config.regime}")
    n = config.columns - config.n_query
    readings = [read_layer(*pair, n, rank=config.rank) for pair in merged_weights(model)]
    return [S for S in (reading.sketch for reading in readings) if S is not None]


@dataclasses.dataclass(frozen=True)
class SketchReading:
    """How much one layer's learned block looks like SSᵀ of a random orthonormal S.

    The block of W_VP is also read on its own, as α²UVᵀ with orthonormal U and V: the layer takes
    the columns AU and changes A along the columns of V, A ← A + α¹α² (AS)(AS)ᵀAUVᵀ with
    α¹α² ≤ 0. EAGLE has UVᵀ = SSᵀ. What the last layer writes is read by nobody and not trained.

    Attributes
    ----------
    rank : int
        Singular values of W_QK's block above 1 % of the largest.
    eigenvalues : array, shape (n,)
        Of the block's symmetric part divided by α¹, largest first: r ones and zeros for SSᵀ.
    asymmetry : float
        ‖W − Wᵀ‖_F/‖W + Wᵀ‖_F of that block.
    block_difference : float
        ‖Q ∓ V‖_F/‖Q‖_F, Q and V the blocks of W_QK and W_VP at unit norm, the better sign:
        0 when the two share their sketch, √2 when they have nothing in common, NaN when one is
        zero. The published figure is 0.28.
    overlap_previous : float
        ‖SᵀS'‖_F²/r with the sketch S' of the layer before; r/n on average for independent
        Haar sketches. NaN in layer 1.
    ks_diagonal, p_diagonal : float
        Kolmogorov–Smirnov statistic and p-value of the block's diagonal against that of a
        Haar projector, Beta(r/2, (n − r)/2).
    ks_off_diagonal, p_off_diagonal : float
        The same for the entries above the diagonal, against sampled Haar projectors. The
        entries of one projector are not independent: the p-values are indications.
    taken, changed : array, shape (n, r)
        U and V, the r leading singular vectors of W_VP's block; UVᵀ is defined, either alone
        only up to a rotation.
    written_alpha2 : float
        α² of α²UVᵀ: the mean of the r leading singular values, with the sign opposite to α¹.
    overlap_taken, overlap_last : float
        ‖UᵀS‖_F²/r with the layer's own sketch and with that of the last layer; NaN for a block
        that is zero.
    """

    rank: int
    eigenvalues: np.ndarray
    asymmetry: float
    block_difference: float
    overlap_previous: float
    ks_diagonal: float
    p_diagonal: float
    ks_off_diagonal: float
    p_off_diagonal: float
    taken: np.ndarray
    changed: np.ndarray
    written_alpha2: float
    overlap_taken: float
    overlap_last: float


def read_sketches(
    pairs: Sequence[Pair], readings: Sequence[LayerReading], *, rng: Any = 0, draws: int = 200
) -> list[SketchReading]:
    """Compare the learned blocks of a rank-limited network with Haar-random projectors SSᵀ.

    Parameters
    ----------
    pairs : sequence of pairs (W_QK, W_VP), shape (1, N, N)
        Merged weights, one head.
    readings : sequence of LayerReading
        Read with ``rank``.
    rng : int, Generator or None
        As in ``numpy.random.default_rng``; draws the Haar projectors.
    draws : int
        Projectors drawn.

    Returns
    -------
    list of SketchReading
        One a layer.

    References
    ----------
    Lutz et al. (2025), section 4 (computation-limited regime).

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import constructions, unrolling
    >>> S = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 3)))[0]
    >>> pairs = constructions.eagle(12, 1, [0.25], [0.5], sketches=[S])
    >>> readings = [unrolling.read_layer(*pairs[0], n=12, rank=3)]
    >>> [sketch] = unrolling.read_sketches(pairs, readings)
    >>> sketch.rank, sketch.eigenvalues[:4].round(6), round(sketch.block_difference, 6)
    (3, array([1., 1., 1., 0.]), 0.0)
    """
    from scipy import stats

    rng = np.random.default_rng(rng)
    S_all = [reading.sketch for reading in readings if reading.sketch is not None]
    if len(S_all) < len(readings) or any(reading.alpha1.size != 1 for reading in readings):
        raise ValueError("sketches are read from rank-limited layers of one head")
    found: list[SketchReading] = []
    for layer, ((W_QK, W_VP), reading) in enumerate(zip(pairs, readings, strict=True)):
        S, n = S_all[layer], reading.n
        QK, VP = _by_source(W_QK, W_VP)
        block, other = QK[0, :n, :n], VP[0, 0, :n, :n]
        learned = (block + block.T) / (2 * reading.alpha1[0])
        haar = np.linalg.qr(rng.standard_normal((draws, n, S.shape[1])))[0]
        above = np.triu_indices(n, 1)
        r = S.shape[1]
        ks_diagonal, p_diagonal, ks_off, p_off = (np.nan,) * 4
        if r < n:  # otherwise SSᵀ = I, and nothing is random
            ks_diagonal, p_diagonal = stats.ks_1samp(
                np.diag(learned), stats.beta(r / 2, (n - r) / 2).cdf
            )
            ks_off, p_off = stats.ks_2samp(learned[above], (haar @ haar.mT)[:, *above].ravel())
        singular = np.linalg.svd(block, compute_uv=False)
        U, sizes, Vh = np.linalg.svd(other)
        sign = -np.sign(reading.alpha1[0])
        U, V = sign * U[:, :r], Vh[:r].T
        found.append(
            SketchReading(
                rank=int((singular > 0.01 * singular[0]).sum()),
                eigenvalues=np.linalg.eigvalsh(learned)[::-1],
                asymmetry=float(np.linalg.norm(block - block.T) / np.linalg.norm(block + block.T)),
                block_difference=_difference_up_to_sign(block, other),
                overlap_previous=_overlap(S, S_all[layer - 1]) if layer else np.nan,
                ks_diagonal=float(ks_diagonal),
                p_diagonal=float(p_diagonal),
                ks_off_diagonal=float(ks_off),
                p_off_diagonal=float(p_off),
                taken=U,
                changed=V,
                written_alpha2=float(sign * sizes[:r].mean()),
                overlap_taken=_overlap(U, S) if sizes[0] else np.nan,
                overlap_last=_overlap(U, S_all[-1]) if sizes[0] else np.nan,
            )
        )
    return found


# The network and the algorithm, side by side.


def forward(pairs: Sequence[Pair], A: Any, B: Any, C: Any) -> list[np.ndarray]:
    """The tokens before the first layer and after each one, float64, laid out as the model's.

    Parameters
    ----------
    pairs : sequence of pairs (W_QK, W_VP)
        From :func:`merged_weights`, :func:`rebuild` or :func:`quantise`.
    A, B, C : array, shapes (batch, d, n), (batch, d', n), (batch, d, n')
        Prompts.

    Returns
    -------
    list of arrays, shape (batch, M, d + d', n_μ + n')
        M = 1 without machines. A prompt that diverges holds infinities.

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import constructions, unrolling
    >>> layers = constructions.eagle(1, 1, [1 / 12], [1 / 4])
    >>> Z = unrolling.forward(layers, [[[2.0]]], [[[4.0]]], [[[1.0]]])
    >>> unrolling.prediction(Z[-1], d=1, n_query=1)
    array([[[2.]]])
    """
    A, B, C = map(to_numpy, (A, B, C))
    with np.errstate(over="ignore", invalid="ignore"):
        if np.ndim(pairs[0][1]) == 4:
            machines = pairs[0][1].shape[0]
            split = zip(np.split(A, machines, axis=-1), np.split(B, machines, axis=-1), strict=True)
            shared = [(QK[0] if QK.ndim == 3 else QK, VP) for QK, VP in pairs]
            return attention.distributed_stack(list(split), C, shared)
        states = attention.row_stack(A, B, C, pairs)
        return [np.block([[a, c], [b, d]])[:, None] for a, b, c, d in states]


def prediction(Z: np.ndarray, d: int, n_query: int) -> np.ndarray:
    """−D, averaged over the machines' copies, shape (batch, d', n').

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import unrolling
    >>> unrolling.prediction(np.array([[[[2.0, 1.0], [4.0, -3.0]]]]), d=1, n_query=1)
    array([[[3.]]])
    """
    return -Z[..., d:, -n_query:].mean(axis=-3)


def fidelity(
    network: Sequence[np.ndarray], algorithm: Sequence[np.ndarray], statistic: Any = np.mean
) -> np.ndarray:
    """10⁴ · ‖Z_network − Z_algorithm‖_F²/(entries of Z) after every layer, over the prompts.

    Parameters
    ----------
    network, algorithm : sequence of arrays
        States of :func:`forward`, both begun at the prompts.
    statistic : callable
        Mean (as published) or median over the prompts.

    Returns
    -------
    array, shape (layers,)

    References
    ----------
    Lutz et al. (2025), table 1.

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import unrolling
    >>> zero, one = np.zeros((5, 1, 2, 2)), np.ones((5, 1, 2, 2))
    >>> unrolling.fidelity([zero, zero], [zero, one])
    array([10000.])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return 1e4 * np.array(
            [
                statistic(((Z - other) ** 2).mean(axis=(1, 2, 3)))
                for Z, other in zip(network[1:], algorithm[1:], strict=True)
            ]
        )


def step_sizes(
    readings: Sequence[LayerReading], states: Sequence[np.ndarray], d: int
) -> tuple[np.ndarray, np.ndarray]:
    """The η and γ that a prompt experiences: ηρ and γρ times its own ‖A_l S_l‖₂², every layer.

    Parameters
    ----------
    readings : sequence of LayerReading
        One a layer.
    states : sequence of arrays
        The network's tokens, from :func:`forward`.
    d : int
        Features.

    Returns
    -------
    tuple of arrays, shape (layers, batch)
        η and γ. Of several machines the largest ‖A_μ‖₂ counts. The maximum over a batch
        belongs to the prompt for which the step is largest.

    References
    ----------
    Lutz et al. (2025), section 4 (η ≈ 1, γ ≈ 1.9 at the largest norm of a batch).

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.transformers import constructions, unrolling
    >>> layers = constructions.eagle(1, 1, [1 / 12], [1 / 4])
    >>> states = unrolling.forward(layers, [[[2.0]]], [[[4.0]]], [[[1.0]]])
    >>> eta, gamma = unrolling.step_sizes([unrolling.read_layer(*layers[0], n=1)], states, d=1)
    >>> eta.round(4), gamma.round(4)
    (array([[0.3333]]), array([[1.]]))
    """
    eta, gamma = [], []
    for reading, Z in zip(readings, states[:-1], strict=True):
        A = np.nan_to_num(Z[..., :d, : reading.n], nan=0.0, posinf=0.0, neginf=0.0)
        sketched = A if reading.sketch is None else A @ reading.sketch
        with np.errstate(over="ignore"):
            square = np.linalg.norm(sketched, ord=2, axis=(-2, -1)).max(axis=1) ** 2
        eta.append(reading.eta_rho * square)
        gamma.append(reading.gamma_rho * square)
    return np.array(eta), np.array(gamma)


def eagle_states(
    A: Any,
    B: Any,
    C: Any,
    layers: int,
    *,
    eta: float = 1 / 3,
    gamma: float = 1.0,
    sketches: Sequence[np.ndarray] | None = None,
    machines: int = 1,
) -> list[np.ndarray]:
    """EAGLE itself, every prompt (and machine) with its own ρ, laid out as the network's tokens.

    Parameters
    ----------
    A, B, C : array, shapes (batch, d, n), (batch, d', n), (batch, d, n')
        Prompts.
    layers : int
        Depth.
    eta, gamma : float
        Step sizes in units of ρ.
    sketches : sequence of arrays, shape (n, r), optional
        S of every layer.
    machines : int
        The examples are split evenly over so many machines; C and D are averaged.

    Returns
    -------
    list of arrays, shape (batch, M, d + d', n_μ + n')
        D with attention's sign, as in :func:`forward`.

    Examples
    --------
    >>> from linear_icl.transformers import unrolling
    >>> Z = unrolling.eagle_states([[[2.0]]], [[[4.0]]], [[[1.0]]], layers=1)
    >>> unrolling.prediction(Z[-1], d=1, n_query=1)
    array([[[2.]]])
    """
    A, B, C = map(to_numpy, (A, B, C))
    D = np.zeros((*A.shape[:-2], B.shape[-2], C.shape[-1]))
    A, B = (np.stack(np.split(block, machines, axis=-1), axis=-3) for block in (A, B))
    C, D = (np.repeat(block[:, None], machines, axis=1) for block in (C, D))
    states = [np.block([[A, C], [B, D]])]
    for layer in range(layers):
        S = None if sketches is None else sketches[layer]
        A, B, C, D = solvers.eagle_update(A, B, C, D, S, eta=eta, gamma=gamma)
        C, D = (np.broadcast_to(X.mean(axis=1, keepdims=True), X.shape) for X in (C, D))
        states.append(np.block([[A, C], [B, -D]]))
    return states


# Everything at once.


@dataclasses.dataclass(frozen=True)
class Unrolling:
    """What :func:`unroll` found. Errors are squared, per entry of D, on held-out prompts.

    Attributes
    ----------
    regime : {"unconstrained", "rank_limited", "distributed"}
        Of the model.
    task : {"completion", "estimation"}
        What the prompts ask for.
    step, noise, prompts : int, float, int
        Training steps, variance of the noise, prompts used here.
    pairs : list of pairs (W_QK, W_VP)
        The network's merged weights.
    readings : list of LayerReading
        One a layer.
    sketches : list of SketchReading
        Rank-limited, one head.
    fidelity_mean, fidelity_median : array, shape (layers,)
        Network against the rebuilt algorithm, see :func:`fidelity`.
    blocks_mean, blocks_median : array, shape (layers,)
        Network against its own blocks with everything off them dropped.
    two_sketches_mean, two_sketches_median : array, shape (layers,), or None
        Network against the algorithm rebuilt with a sketch to read and others to write;
        rank-limited, one head.
    eta, gamma : array, shape (layers, prompts)
        See :func:`step_sizes`.
    errors : dict of arrays, shape (prompts,)
        ``zero`` (predicting 0), ``network``, ``rebuilt`` (three numbers a layer), ``two
        sketches`` (rebuilt with a sketch to read and others to write; rank-limited, one head),
        ``quantised`` (see :func:`quantise`), ``EAGLE (1/3, 1)`` with each prompt's own ρ, as many
        layers and the network's sketches, ``direct`` (of the known number of directions, with
        noise or in estimation).
    """

    regime: str
    task: str
    step: int
    noise: float
    prompts: int
    pairs: list[Pair]
    readings: list[LayerReading]
    sketches: list[SketchReading]
    fidelity_mean: np.ndarray
    fidelity_median: np.ndarray
    blocks_mean: np.ndarray
    blocks_median: np.ndarray
    two_sketches_mean: np.ndarray | None
    two_sketches_median: np.ndarray | None
    eta: np.ndarray
    gamma: np.ndarray
    errors: dict[str, np.ndarray]

    def report(self) -> str:
        """The findings as plain text."""
        return _report(self)

    def figures(self) -> dict[str, Figure]:
        """Figures by name: ``weights``, ``steps``, and ``sketches`` when rank-limited."""
        return _figures(self)


def unroll(
    source: str | Path | LinearTransformer,
    *,
    config: Any = None,
    prompts: int = 4096,
    seed: int = 12345,
) -> Unrolling:
    """Read a trained model as an algorithm and run both on the same fresh prompts.

    Parameters
    ----------
    source : path or LinearTransformer
        The folder of a checkpoint, or a model together with ``config``.
    config : TrainingConfig, optional
        Says how prompts are drawn; the checkpoint's own unless a model is given.
    prompts : int
        Prompts drawn.
    seed : int
        Of the prompts.

    Returns
    -------
    Unrolling

    Raises
    ------
    FileNotFoundError, ValueError
        No checkpoint there, a damaged one, or a model without a config.

    References
    ----------
    Lutz et al. (2025), section 4.

    Examples
    --------
    >>> from linear_icl.transformers import training, unrolling
    >>> from linear_icl.transformers.model import LinearTransformer, ModelConfig
    >>> config = training.TrainingConfig(model=ModelConfig(d=4, n=5, d_out=1, n_query=2), rank=3)
    >>> found = unrolling.unroll(LinearTransformer(config.model), config=config, prompts=10)
    >>> len(found.readings), found.eta.shape
    (4, (4, 10))
    """
    import torch

    from linear_icl.transformers import training

    if isinstance(source, (str, Path)):
        model, manifest = training.load(source)
        config, step = training.TrainingConfig.from_dict(manifest["config"]), manifest["step"]
    elif config is None:
        raise ValueError("a model needs its TrainingConfig: pass config=…")
    else:
        model, step = source, 0
    shape = config.model
    generator = torch.Generator().manual_seed(seed)
    drawn = training.draw_prompts(config, prompts, generator)
    A, B, C, D = map(to_numpy, drawn)
    pairs = merged_weights(model)
    readings = [read_layer(*pair, shape.columns - shape.n_query, rank=shape.rank) for pair in pairs]
    network = forward(pairs, A, B, C)
    rebuilt = forward(rebuild(readings, shape.n_query), A, B, C)
    blocks = forward(rebuild(readings, shape.n_query, keep_blocks=pairs), A, B, C)
    one_head = shape.rank is not None and shape.heads == 1
    learned = read_sketches(pairs, readings) if one_head else []
    two_sketches = None
    if learned:
        two_sketches = forward(rebuild(readings, shape.n_query, sketches=learned), A, B, C)
    eta, gamma = step_sizes(readings, network, shape.d)
    S = [r.sketch for r in readings if r.sketch is not None] or None
    runs = {
        "zero": None,
        "network": network,
        "rebuilt": rebuilt,
        **({"two sketches": two_sketches} if two_sketches else {}),
        "quantised": forward(quantise(pairs), A, B, C),
        "EAGLE (1/3, 1)": eagle_states(A, B, C, shape.layers, sketches=S, machines=shape.machines),
    }
    with np.errstate(over="ignore", invalid="ignore"):
        errors = {
            name: ((0 if Z is None else prediction(Z[-1], shape.d, shape.n_query)) - D) ** 2
            for name, Z in runs.items()
        }
        errors["direct"] = (to_numpy(training.direct(config, *drawn[:3])) - D) ** 2
        errors = {
            name: np.nan_to_num(error.mean(axis=(1, 2)), nan=np.inf)
            for name, error in errors.items()
        }
    return Unrolling(
        regime=shape.regime,
        task=config.task,
        step=step,
        noise=config.noise,
        prompts=prompts,
        pairs=pairs,
        readings=readings,
        sketches=learned,
        fidelity_mean=fidelity(network, rebuilt),
        fidelity_median=fidelity(network, rebuilt, np.median),
        blocks_mean=fidelity(network, blocks),
        blocks_median=fidelity(network, blocks, np.median),
        two_sketches_mean=fidelity(network, two_sketches) if two_sketches else None,
        two_sketches_median=fidelity(network, two_sketches, np.median) if two_sketches else None,
        eta=eta,
        gamma=gamma,
        errors=errors,
    )


# Shapes.


def _by_source(W_QK: Any, W_VP: Any) -> Pair:
    """(sources, N, N) and (sources, targets, N, N), whatever the form."""
    QK, VP = np.asarray(W_QK, dtype=np.float64), np.asarray(W_VP, dtype=np.float64)
    QK = QK[None] if QK.ndim == 2 else QK
    VP = {2: VP[None, None], 3: VP[:, None]}.get(VP.ndim, VP) if VP.ndim < 4 else VP
    square = QK.ndim == 3 and VP.ndim == 4 and QK.shape[1] == QK.shape[2]
    if not square or VP.shape[2:] != QK.shape[1:] or QK.shape[0] not in (1, VP.shape[0]):
        raise ValueError(
            "W_QK and W_VP must be square and of one width, per head or per pair of machines; "
            f"got {np.shape(W_QK)} and {np.shape(W_VP)}"
        )
    return QK, VP


def _own(reading: LayerReading) -> np.ndarray:
    """Where α² belongs: within a machine."""
    heads, targets = reading.alpha2.shape
    return np.eye(heads) if targets > 1 else np.ones((heads, 1))


def _pattern(reading: LayerReading, width: int) -> Pair:
    """The weights that the reading stands for, as :func:`merged_weights` lays them out."""
    n, S = reading.n, reading.sketch
    projector = np.eye(n) if S is None else S @ S.T
    QK = np.zeros((reading.alpha1.size, width, width))
    QK[:, :n, :n] = reading.alpha1[:, None, None] * projector
    VP = np.zeros((*reading.alpha2.shape, width, width))
    VP[..., :n, :n] = (reading.alpha2 * _own(reading))[..., None, None] * projector
    VP[..., n:, n:] = reading.alpha3[..., None, None] * np.eye(width - n)
    return QK, VP if reading.alpha2.shape[1] > 1 else VP[:, 0]


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    total = float(np.sum(whole**2))
    return float(np.sum(part**2)) / total if total > 0 else 0.0


def _overlap(Q: np.ndarray, V: np.ndarray) -> float:
    """‖QᵀV‖_F²/r of two orthonormal n × r matrices: 1 for one space, r/n for random ones."""
    return float(np.sum((Q.T @ V) ** 2) / Q.shape[1])


def _difference_up_to_sign(Q: np.ndarray, V: np.ndarray) -> float:
    if not (Q.any() and V.any()):
        return np.nan
    Q, V = Q / np.linalg.norm(Q), V / np.linalg.norm(V)
    return float(min(np.linalg.norm(Q - V), np.linalg.norm(Q + V)))


# The report and its figures.


def _report(found: Unrolling) -> str:
    layers = len(found.readings)
    asked = " to estimate W*" if found.task == "estimation" else ""
    noisy = f" with noise of variance {found.noise:g}" if found.noise else ""
    lines = [
        f"{found.regime}, trained for {found.step} steps{asked}{noisy}, "
        f"{found.prompts} fresh prompts",
        "(explained in chapter 8 of the book, Training transformers and reading their weights)",
        "",
        "layer   α¹α²      α¹α³      γ/η   off pattern QK, VP   off blocks QK, VP  (share of ‖W‖²)",
    ]
    for layer, reading in enumerate(found.readings, 1):
        eta, gamma = reading.eta_rho, reading.gamma_rho
        # A layer that leaves A alone has no ratio to speak of.
        ratio = f"{gamma / eta:6.2f}" if abs(eta) > 0.01 * abs(gamma) else "     –"
        lines.append(
            f"{layer:>5} {-eta:+9.4f} {-gamma:+9.4f} {ratio}   "
            f"{reading.off_pattern[0]:8.3f} {reading.off_pattern[1]:8.3f}    "
            f"{reading.off_blocks[0]:8.3f} {reading.off_blocks[1]:8.3f}"
        )
    lines.append("(the last layer's α² belongs to blocks A and B that nothing reads any more)")
    if min(max(reading.off_pattern) for reading in found.readings) > 0.9:
        lines.append(
            "The three numbers leave out nearly all of these weights (trained too briefly?); what "
            "follows says little."
        )
    lines += ["", "layer   η median   η largest   γ median   γ largest"]
    for layer, (eta, gamma) in enumerate(zip(found.eta, found.gamma, strict=True), 1):
        # By size, so that a step of the wrong sign is seen.
        largest = [row[np.abs(row).argmax()] for row in (eta, gamma)]
        lines.append(
            f"{layer:>5} {np.median(eta):10.3f} {largest[0]:11.3f} {np.median(gamma):10.3f} "
            f"{largest[1]:11.3f}"
        )
    lines.append("(over the prompts: η = −α¹α²‖A_l‖², γ = −α¹α³‖A_l‖²; theory 1/3 and 1)")
    names = "".join(f"{f'layer {layer}':>12}" for layer in range(1, layers + 1))
    lines += ["", f"{'1e4 |network − rebuilt|²/entry':<32}{names}"]
    for name, values in (
        ("mean", found.fidelity_mean),
        ("median", found.fidelity_median),
        ("mean, own blocks kept", found.blocks_mean),
        ("median, own blocks kept", found.blocks_median),
        ("mean, two sketches", found.two_sketches_mean),
        ("median, two sketches", found.two_sketches_median),
    ):
        if values is not None:
            lines.append(f"{name:<32}" + "".join(f"{value:12.4g}" for value in values))
    if found.sketches:
        n, r = found.sketches[0].taken.shape
        apart, overlap = np.sqrt(2 * (1 - r / n)), r / n
        lines += [
            "(two sketches: read with S, the block of W_VP taken as α² UVᵀ instead of α² SSᵀ)",
            "",
            "layer   rank   W_QK and W_VP differ   overlap with layer before   "
            "KS diagonal (p)   KS above (p)",
        ]
        for layer, sketch in enumerate(found.sketches, 1):
            before = "–" if layer == 1 else f"{sketch.overlap_previous:.3f}"
            lines.append(
                f"{layer:>5} {sketch.rank:>6} {sketch.block_difference:22.3f} {before:>27}       "
                f"{sketch.ks_diagonal:.3f} ({sketch.p_diagonal:.2f})    "
                f"{sketch.ks_off_diagonal:.3f} ({sketch.p_off_diagonal:.2f})"
            )
        lines += [
            f"(independent sketches differ by {apart:.2f} and overlap by {overlap:.2f}; the same "
            "one by 0 and 1; KS: entries against those of random projectors)",
            "",
            "layer   U overlaps with own S   U overlaps with last S",
        ]
        for layer, sketch in enumerate(found.sketches[:-1], 1):
            lines.append(f"{layer:>5} {sketch.overlap_taken:23.3f} {sketch.overlap_last:24.3f}")
    answer = "W*" if found.task == "estimation" else "D"
    title = f"squared error of {answer}"
    lines += [
        "",
        f"{title:<31}      mean      median   zero/mean   zero/median   diverged, %",
    ]
    zero = found.errors["zero"].mean()
    for name, error in found.errors.items():
        mean, median = error.mean(), np.median(error)
        ratios = [
            f"{zero / value:10.3g}" if value > 0 else "         –" for value in (mean, median)
        ]
        label = name
        if name == "rebuilt":
            label = "rebuilt from three numbers"
        elif name.startswith("EAGLE") and found.sketches:
            label += ", same sketches"
        share = 100 * np.mean(error > 100 * zero)
        lines.append(
            f"{label:<31}{mean:10.4g}  {median:10.4g}  {ratios[0]}    {ratios[1]} {share:13.2f}"
        )
    lines.append(
        "(diverged: above 100 times the mean of zero; a single such prompt can own the mean)"
    )
    return "\n".join(lines)


def _figures(found: Unrolling) -> dict[str, Figure]:
    figures = {"weights": _draw_weights(found), "steps": _draw_steps(found)}
    if found.sketches:
        figures["sketches"] = _draw_sketches(found)
    return figures


def _draw_weights(found: Unrolling) -> Figure:
    """W_QK above W_VP, a column a layer; the M × M blocks of a distributed W_VP side by side."""
    from matplotlib.figure import Figure

    from linear_icl import plotting

    plotting.use_style()
    layers = len(found.pairs)
    figure = Figure(figsize=(7.2, 4.2))
    axes = figure.subplots(2, layers, squeeze=False)
    for layer, pair in enumerate(found.pairs):
        for row, (name, W) in enumerate(zip(("W_QK", "W_VP"), _by_source(*pair), strict=True)):
            if row == 1:
                # One wide matrix [source machines] × [target machines], or the heads stacked.
                W = np.concatenate([np.concatenate(list(line), axis=1) for line in W])
            else:
                W = np.concatenate(list(W))
            ax = axes[row, layer]
            limit = np.abs(W).max() or 1.0
            ax.imshow(W, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
            width, n = pair[0].shape[-1], found.readings[layer].n
            for start in range(0, W.shape[0], width):  # between examples and queries
                ax.axhline(start + n - 0.5, color=plotting.GUIDE, linewidth=0.8, linestyle="--")
            for start in range(0, W.shape[1], width):
                ax.axvline(start + n - 0.5, color=plotting.GUIDE, linewidth=0.8, linestyle="--")
            ax.grid(False)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.set_title(f"layer {layer + 1}" if row == 0 else "")
            if layer == 0:
                ax.set_ylabel(f"$W_{{{name[2:]}}}$")
    return figure


def _draw_steps(found: Unrolling) -> Figure:
    """η and γ per layer: the middle of the prompts, and the largest of them."""
    from matplotlib.figure import Figure

    from linear_icl import plotting

    plotting.use_style()
    figure = Figure(figsize=(7.2, 3.8))
    ax = figure.subplots()
    layers = np.arange(1, len(found.readings) + 1)
    looks = (("η", found.eta, "gd", 1 / 3), ("γ", found.gamma, "eagle", 1.0))
    for name, values, look, theory in looks:
        method = plotting.METHODS[look]
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=1)
        ax.fill_between(layers, low, high, color=method.color, alpha=0.2, linewidth=0)
        ax.plot(
            layers, middle, color=method.color, marker=method.marker, label=f"{name}, median prompt"
        )
        ax.axhline(theory, color=method.color, linestyle=":", linewidth=1)
    ax.set_xticks(layers)
    ax.set_xlabel("layer")
    ax.set_ylabel("step in units of 1/‖A‖²")
    ax.legend()
    return figure


def _draw_sketches(found: Unrolling) -> Figure:
    """Eigenvalues of every layer's learned block, beside the ones and zeros of SSᵀ."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from linear_icl import plotting

    plotting.use_style()
    figure = Figure(figsize=(7.2, 3.8))
    ax = figure.subplots()
    looks = list(plotting.METHODS.values())
    for layer, (sketch, look) in enumerate(zip(found.sketches, looks, strict=False), 1):
        places = np.arange(1, sketch.eigenvalues.size + 1)
        ax.plot(
            places,
            sketch.eigenvalues,
            color=look.color,
            marker=look.marker,
            linestyle="",
            label=f"layer {layer}",
        )
    rank = found.readings[0].sketch.shape[1]  # type: ignore[union-attr]
    size = found.sketches[0].eigenvalues.size
    ax.step(
        np.arange(1, size + 1), np.arange(size) < rank, where="mid", color=plotting.GUIDE, zorder=0
    )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("eigenvalue number")
    ax.set_ylabel("eigenvalue / α¹")
    ax.legend()
    return figure
