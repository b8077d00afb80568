"""Trainable linear transformers on row tokens, in the three compute regimes."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

Regime = Literal["unconstrained", "rank_limited", "distributed"]
REGIMES: tuple[Regime, ...] = ("unconstrained", "rank_limited", "distributed")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape of a row-token transformer.

    Attributes
    ----------
    regime : {"unconstrained", "rank_limited", "distributed"}
        Full-width attention; attention whose queries and keys have width ``rank``; or one head
        a machine, each seeing its own examples only.
    d, n, d_out, n_query : int
        Features, examples (of all machines together), outputs, queries.
    layers : int
        Depth.
    heads : int
        Heads a layer; the distributed model has one a machine instead.
    rank : int or None
        Width r of queries and keys; values and outputs have width r + n_query. Rank-limited only.
    machines : int
        Number M of machines; divides n. Distributed only.
    """

    regime: Regime = "unconstrained"
    d: int = 18
    n: int = 18
    d_out: int = 2
    n_query: int = 2
    layers: int = 4
    heads: int = 1
    rank: int | None = None
    machines: int = 1

    def __post_init__(self) -> None:
        if self.regime not in REGIMES:
            raise ValueError(f"regime must be one of {', '.join(REGIMES)}, got {self.regime!r}")
        for name in ("d", "n", "d_out", "n_query", "layers", "heads", "machines"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
        if (self.regime == "rank_limited") != (self.rank is not None):
            raise ValueError(f"rank goes with regime='rank_limited' only, got {self.rank!r}")
        if self.rank is not None and not 1 <= self.rank <= self.n:
            raise ValueError(f"rank must lie in [1, n = {self.n}], got {self.rank}")
        if self.regime != "distributed" and self.machines != 1:
            raise ValueError("machines goes with regime='distributed' only")
        if self.regime == "distributed" and (self.n % self.machines or self.heads != 1):
            raise ValueError(
                f"a distributed model needs machines dividing n = {self.n} and heads = 1 "
                f"(one head a machine), got machines = {self.machines}, heads = {self.heads}"
            )

    @property
    def columns(self) -> int:
        """Columns of one block X_μ = [[A_μ, C], [B_μ, D]]."""
        return self.n // self.machines + self.n_query


class Attention(nn.Module):
    """One row-token layer: Z ← Z + Σ_h ((Z W_Q)(Z W_K)ᵀ ⊙ M) Z W_V W_Pᵀ.

    Tokens are the rows of the prompt. The mask M lets only the first d of them, the rows
    K = [A C], act as keys and values. Without a softmax the products may be taken in any order:
    ((Z W_QK) Kᵀ)(K W_VP), with W_QK = W_Q W_Kᵀ and W_VP = W_V W_Pᵀ formed once for the whole
    batch. Narrow factors would save operations, not time.

    In the distributed model head μ reads block μ of K alone, so the M heads are one with KᵀK
    masked to its diagonal blocks; W_Q, W_K, W_V are shared by all machines, and head μ's W_P
    writes to all M blocks: that is what is sent.
    """

    blocks: Tensor
    queries: Tensor

    def __init__(self, config: ModelConfig, scale: float) -> None:
        super().__init__()
        self.config = config
        width, machines = config.columns, config.machines
        qk = config.rank if config.rank is not None else width
        vp = config.rank + config.n_query if config.rank is not None else width

        def weights(*shape: int) -> nn.Parameter:
            return nn.Parameter(scale * torch.randn(shape))

        self.W_Q = weights(config.heads, width, qk)
        self.W_K = weights(config.heads, width, qk)
        self.W_V = weights(config.heads, width, vp)
        outputs = config.heads if config.regime != "distributed" else machines
        self.W_P = weights(outputs, machines * width, vp)
        self.register_buffer(
            "blocks", torch.block_diag(*[torch.ones(width, width)] * machines), persistent=False
        )
        queries = torch.arange(machines * width).unflatten(0, (machines, width))
        self.register_buffer("queries", queries[:, -config.n_query :].flatten(), persistent=False)

    def merged(self) -> tuple[Tensor, Tensor]:
        """W_QK and W_VP of every head, (heads, M columns, M columns)."""
        W_QK, W_VP = self.W_Q @ self.W_K.mT, self.W_V @ self.W_P.mT
        if self.config.regime == "distributed":
            # Head μ reads block μ: one matrix for all of them, and W_VP stacked by source.
            W_QK = torch.block_diag(*[W_QK[0]] * self.config.machines)[None]
            W_VP = W_VP.flatten(0, 1)[None]
        return W_QK, W_VP

    def forward(self, Z: Tensor, *, last: bool = False) -> Tensor:
        """Z = [X_1 … X_M] of shape (batch, d + d', M columns) → the same shape.

        All rows but the last d' are keys. With ``last`` only the copies of D are computed and
        returned, (batch, d', M n'): the last layer's other blocks are read by nobody.
        """
        keys, outputs = Z[:, : -self.config.d_out], Z[:, -self.config.d_out :]
        tokens = outputs if last else Z
        W_QK, W_VP = self.merged()
        if last:
            W_VP = W_VP[..., self.queries]
        update = tokens[..., self.queries] if last else tokens
        if self.config.regime == "distributed":
            gram = (keys.mT @ keys) * self.blocks
            return update + ((tokens @ W_QK[0]) @ gram) @ W_VP[0]
        for head in range(len(W_QK)):
            scores = (tokens @ W_QK[head]) @ keys.mT
            update = update + scores @ (keys @ W_VP[head])
        return update


class LinearTransformer(nn.Module):
    """A stack of row-token linear-attention layers that completes the block D of a prompt.

    Parameters
    ----------
    config : ModelConfig
        Shape and regime.
    scale : float
        Standard deviation of the initial entries of W_Q, W_K, W_V and W_P.

    Examples
    --------
    >>> import torch
    >>> from linear_icl.transformers.model import LinearTransformer, ModelConfig
    >>> model = LinearTransformer(ModelConfig(d=4, n=6, d_out=1, n_query=2))
    >>> model(torch.ones(8, 4, 6), torch.ones(8, 1, 6), torch.ones(8, 4, 2)).shape
    torch.Size([8, 1, 2])
    """

    def __init__(self, config: ModelConfig, scale: float = 0.1) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Attention(config, scale) for _ in range(config.layers))

    def tokens(self, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        """Z = [X_1 … X_M] with X_μ = [[A_μ, C], [B_μ, 0]], shape (batch, d + d', M columns).

        The weights act on columns, so A and C may have any number d of rows, not only the one
        of the configuration.
        """
        config, d = self.config, A.shape[-2]
        expected = (d, config.n), (config.d_out, config.n), (d, config.n_query)
        given = tuple(tuple(block.shape[-2:]) for block in (A, B, C))
        if given != expected:
            raise ValueError(
                f"A, B, C must have the shapes {expected} after the batch, got {given}"
            )
        machines = config.machines
        examples = torch.cat([A, B], dim=-2).unflatten(-1, (machines, -1))
        query = torch.cat([C, C.new_zeros(*C.shape[:-2], config.d_out, config.n_query)], dim=-2)
        copies = query.unsqueeze(-2).expand(-1, -1, machines, -1)
        return torch.cat([examples, copies], dim=-1).flatten(-2)

    def states(self, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
        """The tokens before the first layer and after each one."""
        states = [self.tokens(A, B, C)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states

    def prediction(self, Z: Tensor) -> Tensor:
        """−D, averaged over the machines' copies: attention moves D with the sign of C."""
        copies = Z[:, -self.config.d_out :].unflatten(-1, (self.config.machines, -1))
        return -copies[..., -self.config.n_query :].mean(dim=-2)

    def forward(self, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        """Blocks of shape (batch, ·, ·) → the completed block D, (batch, d', n')."""
        Z = self.tokens(A, B, C)
        *layers, last = self.layers
        for layer in layers:
            Z = layer(Z)
        return -last(Z, last=True).unflatten(-1, (self.config.machines, -1)).mean(dim=-2)
