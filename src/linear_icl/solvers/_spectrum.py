"""The singular values of A, followed through the cubic update one scalar at a time."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from linear_icl._arrays import Array, to_numpy, transpose

# The smallest l that the minimax schedule plans for.
MINIMAX_FLOOR = 0.05


def default_rcond(A: Array) -> float:
    """max(d, n) · machine epsilon: where NumPy's and MATLAB's ``pinv`` and ``rank`` cut."""
    return max(A.shape[-2:]) * _epsilon(A)


def _epsilon(A: Array) -> float:
    return float(np.finfo(str(A.dtype).removeprefix("torch.")).eps)


class Spectrum:
    """Singular values of A, scaled so that the largest is 1, as the update moves them.

    Every layer is A ← A − ηρ AAᵀA with ρ = 1/‖A‖₂², so the singular vectors never change and
    each singular value goes its own way, σ → σ(1 − ηρσ²). One computation of the singular
    values therefore gives ‖A‖₂ of *every* layer, and the rank, for the price of one norm.
    """

    def __init__(
        self, sigma: np.ndarray, epsilon: float, rcond: float, square: bool = True
    ) -> None:
        self.epsilon, self.rcond, self.square = epsilon, rcond, square
        largest = np.max(sigma, axis=-1, keepdims=True, initial=0.0)
        self.norm = np.where(largest > 0, largest, 1.0)
        self.sigma = sigma / self.norm
        # Directions below rcond·σ_max are round-off: they take no part in any decision.
        self.retained = (sigma > self.rcond * largest) & (largest > 0)
        self.rank = self.retained.sum(axis=-1)
        self.full = self.rank == sigma.shape[-1]
        smallest = np.min(np.where(self.retained, self.sigma, 1.0), axis=-1, initial=1.0)
        self.kappa = 1 / smallest
        self.tiny = self.epsilon**2
        # Directions that are zero come back as round-off, and grow with every layer.
        self.round_off = self.epsilon

    @classmethod
    def of(cls, A: Array, rcond: float | None) -> Spectrum:
        """The spectrum of a matrix (or of a batch of them)."""
        rcond = default_rcond(A) if rcond is None else rcond
        square = A.shape[-1] == A.shape[-2]
        return cls(_singular_values(A), _epsilon(A), rcond, square)

    def minimax_eta(self) -> np.ndarray:
        """η = 1/(1 + l + l²) for σ ∈ [l, 1]: the cubic that lifts the smallest σ the most.

        σ(1 − ησ²) with this η is, up to a factor, the odd cubic nearest to 1 on [l, 1]; at
        l = 1 it is Newton–Schulz's 1/3. The cubic of a small l throws σ = 1 down to about
        2.6 l, and round-off with it grows by 1/l; so l is never taken below ``MINIMAX_FLOOR``,
        which costs 3 % of the growth a layer.
        """
        smallest = np.min(np.where(self.retained, self.sigma, 1.0), axis=-1, initial=1.0)
        smallest = np.maximum(smallest, MINIMAX_FLOOR)
        return 1 / (1 + smallest + smallest**2)

    def step(self, eta: np.ndarray | float) -> np.ndarray:
        """Move every σ one layer on; return ‖A‖₂ of the new A before it is scaled back to 1."""
        moved = np.abs(self.sigma * (1 - np.asarray(eta)[..., None] * self.sigma**2))
        top = np.max(np.where(self.retained, moved, 0.0), axis=-1, initial=0.0)
        top = np.where(top > 0, top, 1.0)
        self.sigma = moved / top[..., None]
        self.round_off = self.round_off / float(np.min(top, initial=1.0))
        return top

    def lacking(self, gamma: float) -> np.ndarray:
        """max |1 − γσ²|/γσ²: what the next layer leaves open, over what it adds, at worst."""
        gain = np.where(self.retained, gamma * self.sigma**2, 1.0)
        return np.max(np.abs(1 - gain) / np.maximum(gain, self.tiny), axis=-1, initial=0.0)

    @property
    def deviation(self) -> np.ndarray:
        """max |1 − σ²| over the retained directions: 0 when A is a partial isometry."""
        away = np.where(self.retained, np.abs(1 - self.sigma**2), 0.0)
        return np.max(away, axis=-1, initial=0.0)

    @property
    def isometric(self) -> np.ndarray:
        """True where A is a partial isometry to working precision."""
        return self.deviation <= 8 * self.epsilon

    @property
    def lost(self) -> np.ndarray:
        """True where a retained direction has been annihilated and can never come back."""
        return np.any(self.retained & (self.sigma <= self.tiny), axis=-1)

    @property
    def _discarded(self) -> np.ndarray:
        """Largest σ² among the discarded directions, round-off grown since the start included."""
        sigma = np.where(self.retained, 0.0, np.maximum(self.sigma, self.round_off))
        return np.max(sigma**2, axis=-1, initial=0.0)

    @property
    def separated(self) -> np.ndarray:
        """True where the discarded directions are still well below the retained ones.

        A of full rank that is not square has empty directions too, on its longer side.
        """
        return np.where(self.full, self.square or self.round_off < 0.03, self._discarded < 0.4)

    def purifications(self) -> int:
        """How often 3E² − 2E³ must be applied until no discarded direction is left in E."""
        left = np.max(np.where(self.separated & ~self.full, self._discarded, 0.0), initial=0.0)
        times = 1
        while (left := 3 * left**2 - 2 * left**3) > self.epsilon**2:
            times += 1
        return times


def _singular_values(A: Array) -> np.ndarray:
    """Singular values, from the smaller Gram matrix where that tells them well enough."""
    if 0 in A.shape:
        return np.zeros((*A.shape[:-2], min(A.shape[-2:])))
    # The limit of the iteration does not depend on ρ, so no gradient needs to pass through it.
    A = A.detach() if is_torch_array(A) else A
    xp = array_namespace(A)
    wide = A.shape[-1] >= A.shape[-2]
    gram = A @ transpose(A) if wide else transpose(A) @ A
    squares = to_numpy(xp.linalg.eigvalsh(gram))
    # λ_min(Σ) carries an error of about ε λ_max. Where it stands clear of that, its root is as
    # good as the singular value, for a quarter of the work; elsewhere A itself must be asked.
    trust = 32 * min(A.shape[-2:]) * _epsilon(A)
    if np.all(squares[..., 0] > trust * squares[..., -1]):
        return np.sqrt(squares[..., ::-1])
    return to_numpy(xp.linalg.svdvals(A))


def project_on_range(A: Array, C: Array, purifications: int) -> Array:
    """P C for the orthogonal projector P on range(A), A a partial isometry up to round-off.

    E = AAᵀ is then P plus round-off directions whose eigenvalues started near 1e-32 and have
    grown by 9/4 a layer; 3E² − 2E³ (McWeeny's purification) keeps P and squares the rest away.
    """
    if purifications == 0:
        return A @ (transpose(A) @ C)
    once = project_on_range(A, C, purifications - 1)
    twice = project_on_range(A, once, purifications - 1)
    return 3 * twice - 2 * project_on_range(A, twice, purifications - 1)


def contracted(A: Array, eta: Array, norm: Array) -> Array:
    """(A − η AAᵀA)/norm as A (I − η AᵀA)/norm, or from the left: the smaller Gram matrix."""
    right = A.shape[-1] <= A.shape[-2]
    damping = transpose(A) @ A if right else A @ transpose(A)
    damping *= -eta / norm  # in its own memory: with A and the new A that is all there is
    index = array_namespace(A).arange(damping.shape[-1])
    damping[..., index, index] += (1 / norm)[..., 0]
    return A @ damping if right else damping @ A


def cubic(A: Array, right: Array) -> Array:
    """right · AᵀA, with the parentheses that need the smaller Gram matrix.

    ``cubic(A, A)`` is AAᵀA in O(d n min(d, n)) and ``cubic(A, B)`` is BAᵀA.
    """
    if A.shape[-1] <= A.shape[-2]:
        return right @ (transpose(A) @ A)
    return (right @ transpose(A)) @ A
