"""Row-token transformers whose attention scores pass through a function: linear, ReLU, softmax.

Small ones, trained in seconds: they tell what of a trained linear transformer belongs to linear
attention, what to the symmetry of its prompts, and what to the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

Scores = Literal["linear", "relu", "softmax"]
FUNCTIONS: dict[Scores, Callable[[Tensor], Tensor]] = {
    "linear": lambda scores: scores,
    "relu": torch.relu,
    "softmax": lambda scores: scores.softmax(dim=-1),
}
Prompts = tuple[Tensor, Tensor, Tensor, Tensor]


class ScoreTransformer(nn.Module):
    """Layers Z ← Z + Σ_h f(Z W_QK^h Kᵀ) K W_VP^h, where K = [A C] are the first d rows of Z.

    Parameters
    ----------
    n, n_query : int
        Examples and queries: a token, one row of the prompt, has n + n' entries.
    layers, heads : int
        Depth, and heads a layer.
    scores : {"linear", "relu", "softmax"}
        The function f; softmax is over the keys.
    scale : float
        Standard deviation of the initial entries of W_Q, W_K, W_V and W_P.

    Examples
    --------
    >>> import torch
    >>> from linear_icl.transformers.score_attention import ScoreTransformer
    >>> model = ScoreTransformer(n=6, n_query=2, layers=3, scores="softmax")
    >>> model(torch.ones(5, 4, 6), torch.ones(5, 1, 6), torch.ones(5, 4, 2)).shape
    torch.Size([5, 1, 2])
    """

    def __init__(
        self,
        n: int,
        n_query: int,
        layers: int,
        heads: int = 1,
        scores: Scores = "linear",
        scale: float = 0.1,
    ) -> None:
        super().__init__()
        if scores not in FUNCTIONS:
            raise ValueError(f"scores must be one of {', '.join(FUNCTIONS)}, got {scores!r}")
        self.n, self.n_query, self.scores = n, n_query, scores
        shape = (4, layers, heads, n + n_query, n + n_query)
        self.factors = nn.Parameter(scale * torch.randn(shape))

    def merged(self) -> tuple[Tensor, Tensor]:
        """W_QK = W_Q W_Kᵀ and W_VP = W_V W_Pᵀ, both (layers, heads, N, N)."""
        W_Q, W_K, W_V, W_P = self.factors
        return W_Q @ W_K.mT, W_V @ W_P.mT

    def states(self, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
        """The tokens before the first layer and after each one, (batch, d + d', n + n')."""
        function, d = FUNCTIONS[self.scores], A.shape[-2]
        corner = C.new_zeros(*C.shape[:-2], B.shape[-2], C.shape[-1])
        Z = torch.cat([torch.cat([A, C], dim=-1), torch.cat([B, corner], dim=-1)], dim=-2)
        states = [Z]
        for W_QK, W_VP in zip(*self.merged(), strict=True):
            keys, Z = Z[:, :d], states[-1]
            for QK, VP in zip(W_QK, W_VP, strict=True):
                Z = Z + function((states[-1] @ QK) @ keys.mT) @ (keys @ VP)
            states.append(Z)
        return states

    def forward(self, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        """Blocks of shape (batch, ·, ·) → the prediction −D, (batch, d', n')."""
        return -self.states(A, B, C)[-1][:, A.shape[-2] :, self.n :]


class PatternTransformer(ScoreTransformer):
    """Linear attention with W_QK = diag(I, 0), W_VP = −diag(ηρ I, γρ I): two numbers a layer.

    The third, α¹, is fixed at 1: only α¹α² and α¹α³ act.

    Parameters
    ----------
    n, n_query, layers : int
        As in :class:`ScoreTransformer`.
    """

    masks: Tensor

    def __init__(self, n: int, n_query: int, layers: int) -> None:
        super().__init__(n, n_query, layers)
        del self.factors
        self.steps = nn.Parameter(torch.full((layers, 2), 1e-3))
        examples = torch.cat([torch.ones(n), torch.zeros(n_query)])
        self.register_buffer("masks", torch.stack([examples, 1 - examples]), persistent=False)

    def merged(self) -> tuple[Tensor, Tensor]:
        """The pattern's weights, (layers, 1, N, N)."""
        W_QK = self.masks[0].diag().expand(len(self.steps), 1, -1, -1)
        return W_QK, -torch.diag_embed(self.steps @ self.masks)[:, None]


def train_scores(
    model: ScoreTransformer,
    draw: Callable[[int, torch.Generator], Prompts],
    steps: int,
    *,
    batch: int = 256,
    learning_rate: float = 3e-3,
    clip: float = 0.1,
    seed: int = 0,
) -> list[float]:
    """Train a model in place with Adam, its rate falling linearly to zero; return the losses.

    Parameters
    ----------
    model : ScoreTransformer
        Changed in place.
    draw : callable
        ``draw(batch, generator)`` gives fresh prompts A, B, C, D.
    steps, batch : int
        Steps, and prompts a step.
    learning_rate, clip : float
        Adam's first rate, and the 2-norm to which gradients are clipped. A step whose gradient
        overflows is skipped.
    seed : int
        Of the prompts.

    Examples
    --------
    >>> import torch
    >>> from linear_icl.transformers.score_attention import PatternTransformer, train_scores
    >>> def draw(batch, generator):
    ...     X = torch.randn(batch, 3, 1, generator=generator) * torch.ones(4)
    ...     return X[:, :2, :3], X[:, 2:, :3], X[:, :2, 3:], X[:, 2:, 3:]
    >>> losses = train_scores(PatternTransformer(3, 1, layers=1), draw, steps=100)
    >>> losses[-1] < losses[0]
    True
    """
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    losses = []
    for _ in range(steps):
        A, B, C, D = draw(batch, generator)
        loss = (model(A, B, C) - D).square().mean()
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if bool(torch.isfinite(norm)):
            optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return losses
