"""A training step of the package against the same step written the plain way.

python benchmarks/train_step.py

Plain: four projections of every token, the mask multiplied in, all blocks computed in every layer,
in the distributed regime the M × M blocks of W_P by einsum, and Adam weight by weight. The package
also turns the feature rows until only s of them are left. Both have the same loss and the same
gradients, which is checked first. Prompts are drawn (and turned) beforehand and outside the clock;
the three take turns, and the time is the CPU time of the process on one thread (on an idle machine
what a clock shows; on a busy one others disturb it least), the median of several rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from provenance import provenance, save
from torch import Tensor

from linear_icl.transformers.model import Attention, LinearTransformer, ModelConfig
from linear_icl.transformers.training import PUBLISHED, TrainingConfig, draw_prompts

BATCH, ROUNDS, STEPS = 1024, 9, 5


def plain_layer(Z: Tensor, layer: Attention) -> Tensor:
    """Z + Σ_h ((Z W_Q)(Z W_K)ᵀ ⊙ M) Z W_V W_Pᵀ as it stands; Z is (batch, rows, machines N)."""
    config = layer.config
    mask = torch.zeros(Z.shape[1])
    mask[: config.d] = 1
    if config.regime != "distributed":
        mixed = Z
        for W_Q, W_K, W_V, W_P in zip(layer.W_Q, layer.W_K, layer.W_V, layer.W_P, strict=True):
            scores = ((Z @ W_Q) @ (Z @ W_K).mT) * mask
            mixed = mixed + scores @ (Z @ W_V) @ W_P.mT
        return mixed
    W_P = layer.W_P.unflatten(1, (config.machines, -1))  # (from, to, N, width)
    X = Z.unflatten(-1, (config.machines, -1)).transpose(1, 2)
    scores = ((X @ layer.W_Q[0]) @ (X @ layer.W_K[0]).mT) * mask
    heads = scores @ (X @ layer.W_V[0])
    return Z + torch.einsum("bmrv,mnkv->brnk", heads, W_P).flatten(-2)


def plain_prediction(model: LinearTransformer, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The whole model, every layer the plain way."""
    Z = model.tokens(A, B, C)
    for layer in model.layers:
        Z = plain_layer(Z, layer)
    return model.prediction(Z)


def gradients(
    model: LinearTransformer, predict: Callable[..., Tensor], batch: tuple[Tensor, ...]
) -> list[Tensor]:
    """Of the mean squared error."""
    *blocks, D = batch
    loss = (predict(*blocks) - D).square().mean()
    return list(torch.autograd.grad(loss, list(model.parameters())))


def turned(A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> tuple[Tensor, ...]:
    """The same prompts, their feature rows rotated and all but the first s left out."""
    triangle = torch.linalg.qr(torch.cat([A, C], dim=-1).double()).R[:, : TrainingConfig.rank]
    n = A.shape[-1]
    return triangle[..., :n].float(), B, triangle[..., n:].float(), D


def flops(config: ModelConfig) -> int:
    """Multiplications and additions of a step's matrix products at least needed, forward and back.

    Per layer, at the cheapest order of the regime on s + d' rows, and three times that for forward
    and backward.
    """
    d, width = min(config.d, TrainingConfig.rank), config.columns
    rows = d + config.d_out
    total = 0
    for layer in range(config.layers):
        last = layer + 1 == config.layers
        tokens, out = (config.d_out, config.n_query) if last else (rows, width)
        if config.rank is not None:
            r, v = config.rank, config.rank + config.n_query
            total += d * width * (r + v) + d * r * v + tokens * (width * r + r * v + v * out)
        elif config.regime == "distributed":
            total += width * width * d + 2 * tokens * width * width
            total += tokens * width * out * config.machines
        else:
            total += tokens * width * width + tokens * width * d + d * width * out
            total += tokens * d * out
    return 3 * 2 * total * config.machines * config.heads * BATCH


def gemm_rate() -> float:
    """flop/s of one large float32 product on one thread."""
    X = torch.randn(1024, 1024)
    X @ X
    spent = []
    for _ in range(5):
        begun = time.process_time()
        for _ in range(5):
            X @ X
        spent.append(time.process_time() - begun)
    return 5 * 2 * 1024**3 / statistics.median(spent)


def main() -> None:
    """Check, time, save."""
    torch.set_num_threads(1)
    rate = gemm_rate()
    report: dict = {"what": "ms of CPU time a step, batch 1024, float32, one thread"}
    report["gemm_gflops"] = round(rate / 1e9, 1)
    for regime, shape in PUBLISHED.items():
        torch.manual_seed(0)
        model = LinearTransformer(shape)
        full = draw_prompts(TrainingConfig(model=shape), BATCH, torch.Generator().manual_seed(0))
        narrow = turned(*full)

        def plain(A: Tensor, B: Tensor, C: Tensor, model: LinearTransformer = model) -> Tensor:
            return plain_prediction(model, A, B, C)

        for ours, theirs in zip(
            gradients(model, model, narrow), gradients(model, plain, full), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)

        def steps(predict: Callable[..., Tensor], batch: tuple[Tensor, ...], fused: bool) -> float:
            optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)  # noqa: B023
            begun = time.process_time()
            for _ in range(STEPS):
                gradient = gradients(model, predict, batch)  # noqa: B023
                for parameter, value in zip(model.parameters(), gradient, strict=True):  # noqa: B023
                    parameter.grad = value
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # noqa: B023
                optimiser.step()
            return 1e3 * (time.process_time() - begun) / STEPS

        rounds = [
            (steps(model, narrow, True), steps(model, full, True), steps(plain, full, False))
            for _ in range(ROUNDS)
        ]
        ours, unturned, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = statistics.median(slow / fast for fast, _, slow in rounds)
        report[regime] = {
            "package_ms": round(ours, 1),
            "all_rows_ms": round(unturned, 1),
            "plain_ms": round(theirs, 1),
            "ratio": round(ratio, 2),
            "bound_ms": round(1e3 * flops(shape) / rate, 1),
            "mflop": round(flops(shape) / 1e6),
        }
        print(regime, report[regime], flush=True)
    save("train_step", {**report, **provenance(threads=1)})


if __name__ == "__main__":
    main()
