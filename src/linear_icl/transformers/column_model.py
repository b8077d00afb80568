"""Trainable column-token transformers for regression prompts: GD++, diagonal and full weights.

Only the moments Σ_j e_j e_jᵀ of a prompt's examples and its queries enter the prediction (see
:mod:`linear_icl.transformers.implicit_weights`), so these models carry two small matrices from
layer to layer instead of the tokens themselves.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from linear_icl import files

Kind = Literal["gd++", "diagonal", "full"]
KINDS: tuple[Kind, ...] = ("gd++", "diagonal", "full")
Pair = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ColumnConfig:
    """A column-token model and the prompts it is trained on.

    Attributes
    ----------
    kind : {"gd++", "diagonal", "full"}
        ω_xx and ω_yx a layer; all four ω (two heads); or free matrices Q and P.
    d, n : int
        Features and examples.
    layers : int
        Depth.
    noise : float
        Largest standard deviation σ_max of the label noise; each prompt draws its own from
        U(0, σ_max).
    x : {"gaussian", "uniform"}
        Features from N(0, 1) or U(−1, 1); the true weights are N(0, 1).
    seed : int
        Seeds the starts and the prompts.
    iterations, prompts, restarts : int
        Quasi-Newton iterations, the prompts whose error they minimise, and the random starts of
        which the best one after a few iterations goes on: the error has many local minima.
    """

    kind: Kind
    d: int = 10
    n: int = 20
    layers: int = 4
    noise: float = 0.0
    x: Literal["gaussian", "uniform"] = "gaussian"
    seed: int = 0
    iterations: int = 100
    prompts: int = 4096
    restarts: int = 8

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.x not in ("gaussian", "uniform"):
            raise ValueError(f"x must be gaussian or uniform, got {self.x!r}")
        for name in ("d", "n", "layers", "iterations", "prompts", "restarts"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
        if not self.noise >= 0:
            raise ValueError(f"noise must be at least 0, got {self.noise!r}")


class ColumnTransformer(nn.Module):
    """A stack of column-token layers E ← E + Σ_h P_h (Σ_j e_j e_jᵀ) Q_h E.

    Weights are held in units of 1/n, so that they are of order 1 whatever the prompt's length.

    Parameters
    ----------
    config : ColumnConfig
        Kind and shape.
    start : int
        Number of the random start: around gradient descent with a little conditioning, as a stack
        that begins at 0 has no gradient and one far away explodes; odd ones begin further away.

    References
    ----------
    Vladymyrov et al. (2024), sections 3 and 4.2.

    Examples
    --------
    >>> import torch
    >>> from linear_icl.transformers.column_model import ColumnConfig, ColumnTransformer
    >>> model = ColumnTransformer(ColumnConfig("diagonal", d=3, n=5, layers=2))
    >>> model(torch.ones(7, 3, 5), torch.ones(7, 5), torch.ones(7, 3, 2)).shape
    torch.Size([7, 2])
    """

    def __init__(self, config: ColumnConfig, start: int = 0) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(1000 * config.seed + start)

        def near(values: Tensor) -> nn.Parameter:
            shape = (config.layers, *values.shape)
            noise = torch.randn(shape, generator=generator, dtype=torch.float64)
            return nn.Parameter(values + (0.2 if start % 2 else 0.05) * noise)

        ones = torch.ones(config.d, dtype=torch.float64)
        if config.kind == "full":
            self.Q = near(torch.diag(torch.cat([ones, 0 * ones[:1]])))
            self.P = near(torch.diag(torch.cat([-0.15 * ones, -0.4 * ones[:1]])))
        else:
            omega = torch.tensor([-0.15, 0.0, -0.4, 0.0], dtype=torch.float64)
            self.omega = near(omega[::2] if config.kind == "gd++" else omega)

    def omegas(self) -> Tensor:
        """(ω_xx, ω_xy, ω_yx, ω_yy) of every layer, shape (layers, 4); not for full weights."""
        if self.config.kind == "full":
            raise ValueError("full weights have no ω; read their matrices with pairs()")
        if self.config.kind == "diagonal":
            return self.omega / self.config.n
        zero = torch.zeros_like(self.omega[:, 0])
        xx, yx = self.omega.unbind(dim=1)
        return torch.stack([xx, zero, yx, zero], dim=1) / self.config.n

    def pairs(self) -> list[Pair]:
        """Merged weights (Q, P) a layer.

        They are what :func:`~linear_icl.transformers.attention.column_stack` takes.
        """
        from linear_icl.transformers import constructions

        if self.config.kind != "full":
            return constructions.diagonal(self.config.d, 1, self.omegas().tolist())
        Q, P = self.Q.detach().numpy(), self.P.detach().numpy() / self.config.n
        return list(zip(Q.copy(), P, strict=True))

    def added(self, G: Tensor, layer: int) -> Tensor:
        """Σ_h P_h G Q_h: the matrix that a layer adds to the identity, for moments G."""
        if self.config.kind == "full":
            return self.P[layer] / self.config.n @ (G @ self.Q[layer])
        d = self.config.d
        xx, xy, yx, yy = self.omegas()[layer]
        top = torch.cat([xx * G[:, :d, :d], xy * G[:, :d, d:]], dim=2)
        return torch.cat([top, torch.cat([yx * G[:, d:, :d], yy * G[:, d:, d:]], dim=2)], dim=1)

    def forward(self, A: Tensor, y: Tensor, C: Tensor) -> Tensor:
        """A (batch, d, n), y (batch, n), C (batch, d, n') → predictions (batch, n')."""
        E = torch.cat([A, y[:, None, :]], dim=1)
        G = E @ E.mT
        query = torch.cat([C, torch.zeros_like(C[:, :1])], dim=1)
        for layer in range(self.config.layers):
            step = self.added(G, layer)
            query = query + step @ query
            if layer + 1 < self.config.layers:  # nobody reads the last layer's examples
                T = step + torch.eye(step.shape[-1], dtype=step.dtype, device=step.device)
                G = T @ G @ T.mT
        return -query[:, -1]


def draw_regression(
    config: ColumnConfig, batch: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Fresh prompts: A, noisy labels y, query C, its noiseless label t, and each prompt's σ."""
    shape = (batch, config.d, config.n + 1)
    if config.x == "gaussian":
        both = torch.randn(shape, generator=generator, dtype=torch.float64)
    else:
        both = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
    w = torch.randn(batch, 1, config.d, generator=generator, dtype=torch.float64)
    labels = (w @ both)[:, 0]
    sigma = config.noise * torch.rand(batch, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(batch, config.n, generator=generator, dtype=torch.float64)
    A, C = both[..., : config.n], both[..., config.n :]
    return A, labels[:, : config.n] + sigma * noise, C, labels[:, config.n :], sigma


def eigenbasis(A: Tensor, y: Tensor, C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues of Σ = AAᵀ, and α = Ay and the queries in its eigenvectors."""
    values, vectors = torch.linalg.eigh(A @ A.mT)
    return values, (vectors.mT @ (A @ y[..., None]))[..., 0], vectors.mT @ C


def gd_plus_plus_spectral(omega: Tensor, values: Tensor, alpha: Tensor, query: Tensor) -> Tensor:
    """What GD++ predicts, number by number: its layers never turn the eigenvectors of Σ.

    Parameters
    ----------
    omega : Tensor, shape (layers, 2)
        ω_xx and ω_yx of every layer.
    values, alpha, query : Tensor, shapes (batch, d), (batch, d), (batch, d, n')
        Of :func:`eigenbasis`.
    """
    label = torch.zeros_like(query[:, 0])
    for xx, yx in omega:
        label = label + yx * (alpha[:, :, None] * query).sum(dim=1)
        stretch = 1 + xx * values
        alpha = stretch * (1 + yx * values) * alpha
        query = stretch[:, :, None] * query
        values = stretch.square() * values
    return -label


def deepened(model: ColumnTransformer, copied: int) -> ColumnTransformer:
    """The model with one of its layers twice in a row: a start for one that is a layer deeper."""
    config = dataclasses.replace(model.config, layers=model.config.layers + 1)
    found = ColumnTransformer(config)
    order = [*range(copied + 1), *range(copied, model.config.layers)]
    with torch.no_grad():
        for name, value in model.named_parameters():
            getattr(found, name).copy_(value[order])
    return found


def embedded(model: ColumnTransformer, kind: Kind) -> ColumnTransformer:
    """GD++ as diagonal or full weights, which contain it: a start for those."""
    if model.config.kind != "gd++":
        raise ValueError(f"only GD++ is contained in the other kinds, got {model.config.kind!r}")
    found = ColumnTransformer(dataclasses.replace(model.config, kind=kind))
    with torch.no_grad():
        if kind == "full":
            found.Q.copy_(torch.as_tensor(np.stack([Q[0] for Q, _ in model.pairs()])))
            P = np.stack([P[0] for _, P in model.pairs()])
            found.P.copy_(model.config.n * torch.as_tensor(P))
        else:
            found.omega.copy_(model.config.n * model.omegas())
    return found


def train_column(
    config: ColumnConfig, starts: Sequence[ColumnTransformer] = ()
) -> tuple[ColumnTransformer, list[float]]:
    """Train by L-BFGS on one drawn set of prompts; return the model and its course of losses.

    Minimised is log E(ŷ − E[t | prompt])². The oracle (:func:`ridge` with the prompt's own σ) is
    the conditional mean of the label t, so this has the minimiser of E(ŷ − t)² and far less
    variance; the logarithm keeps the gradient of order 1 when the error itself is 1e-10.

    Parameters
    ----------
    config : ColumnConfig
        Model, prompts and recipe.
    starts : sequence of ColumnTransformer, optional
        Join the random starts: such as the :func:`deepened` forms of a model with one layer less,
        and GD++ :func:`embedded` in a kind that contains it.
    """
    generator = torch.Generator().manual_seed(config.seed + 1)
    A, y, C, t, sigma = draw_regression(config, config.prompts, generator)
    target = ridge(A, y, C, sigma**2) if config.noise > 0 else t

    spectral = eigenbasis(A, y, C)

    def predict(model: ColumnTransformer, few: slice) -> Tensor:
        if config.kind == "gd++":  # the same predictions at a twentieth of the cost
            return gd_plus_plus_spectral(model.omega / config.n, *(v[few] for v in spectral))
        return model(A[few], y[few], C[few])

    def minimise(model: ColumnTransformer, iterations: int, few: slice) -> list[float]:
        losses: list[float] = []
        optimiser = torch.optim.LBFGS(
            model.parameters(), max_iter=iterations, history_size=20, line_search_fn="strong_wolfe"
        )

        best = copy.deepcopy(model.state_dict())

        def closure() -> Tensor:
            loss = (predict(model, few) - target[few]).square().mean()
            optimiser.zero_grad()
            loss.log().backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            if not all(bool(gradient.isfinite().all()) for gradient in gradients):
                optimiser.zero_grad(set_to_none=False)  # the line search stepped over an edge
                return torch.tensor(100.0, dtype=torch.float64)
            if loss.item() < min(losses, default=np.inf):
                best.update(copy.deepcopy(model.state_dict()))
            losses.append(loss.item())
            return loss.log().detach()

        optimiser.step(closure)
        model.load_state_dict(best)
        return losses

    # Starts are compared on few prompts: the error has many local minima, and most are poor.
    few, every = slice(0, 512), slice(None)
    models = [ColumnTransformer(config, start) for start in range(config.restarts)]
    models += [_copied(start, config) for start in starts]
    iterations = min(30, config.iterations)
    reached = [min(minimise(model, iterations, few), default=np.inf) for model in models]
    best = models[int(np.argmin(reached))]
    return best, minimise(best, config.iterations, every)


def _copied(start: ColumnTransformer, config: ColumnConfig) -> ColumnTransformer:
    model = ColumnTransformer(config)
    model.load_state_dict(start.state_dict())
    return model


def ridge(A: Tensor, y: Tensor, C: Tensor, variance: Tensor | float) -> Tensor:
    """Ridge regression with its own noise variance a prompt: y Aᵀ(A Aᵀ + σ²I)⁻¹ C.

    With the true variance this is the best possible predictor, the oracle, since w ~ N(0, I).
    """
    variance = torch.as_tensor(variance, dtype=A.dtype).reshape(-1, 1, 1)
    gram = A @ A.mT + variance * torch.eye(A.shape[-2], dtype=A.dtype)
    return (C.mT @ torch.linalg.solve(gram, A @ y[..., None]))[..., 0]


def noise_variance(A: Tensor, y: Tensor) -> Tensor:
    """The unbiased estimate ‖y − ŷ‖²/(n − d) from each prompt's least-squares fit."""
    d, n = A.shape[-2:]
    if n <= d:
        raise ValueError(f"n must exceed d = {d} to estimate the noise, got {n}")
    return (y - ridge(A, y, A, 0.0)).square().sum(dim=-1) / (n - d)


# The trained models that come with the package: one file of weights, one manifest.

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def save_columns(models: dict[str, ColumnTransformer], folder: str | Path = CHECKPOINTS) -> None:
    """Write columns.safetensors and columns.json, each whole or not at all, manifest last."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{name}/{key}": value.contiguous()
        for name, model in models.items()
        for key, value in model.state_dict().items()
    }
    content = safetensors.torch.save(tensors)
    with files.replacing(folder / "columns.safetensors") as stream:
        stream.write(content)
    manifest = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "models": {name: dataclasses.asdict(model.config) for name, model in models.items()},
    }
    files.write_text(folder / "columns.json", json.dumps(manifest, indent=1) + "\n")


def load_columns(folder: str | Path = CHECKPOINTS) -> dict[str, ColumnTransformer]:
    """The trained column-token models by name, such as ``gd++-depth1``.

    Raises
    ------
    FileNotFoundError
        A file is missing.
    ValueError
        The weights are damaged, or not of the shapes that the manifest says.

    Examples
    --------
    >>> from linear_icl.transformers import column_model
    >>> models = column_model.load_columns()
    >>> models["gd++-depth1"].omegas().shape
    torch.Size([1, 4])
    """
    folder = Path(folder)
    try:
        manifest: dict[str, Any] = json.loads((folder / "columns.json").read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{folder / 'columns.json'} is not valid JSON: {error}") from None
    content = (folder / "columns.safetensors").read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
        raise ValueError(
            f"{folder / 'columns.safetensors'} is damaged: its SHA-256 is not the manifest's"
        )
    tensors = safetensors.torch.load(content)
    models = {}
    for name, values in manifest["models"].items():
        model = ColumnTransformer(ColumnConfig(**values))
        own = {k.rpartition("/")[2]: v for k, v in tensors.items() if k.startswith(f"{name}/")}
        try:
            model.load_state_dict(own)
        except RuntimeError:
            shapes = {key: tuple(value.shape) for key, value in own.items()}
            raise ValueError(f"the weights of {name} do not fit its manifest: {shapes}") from None
        models[name] = model.eval()
    return models
