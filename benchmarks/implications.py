"""Train small transformers that tell architecture, symmetry and loss apart (chapter 10).

python benchmarks/implications.py   train everything, measure, write the results

1. Linear attention with one head and with four, and the pattern of EAGLE alone, two numbers a
   layer: what the loss makes of the same algorithm with less and less freedom.
2. Prompts whose example columns are no longer alike: unequal variances, correlated columns.
3. ReLU and softmax in the place of linear scores.

Every row with two seeds. About five minutes of one core.
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import torch
from provenance import provenance, save
from torch import Tensor

from linear_icl.transformers import training, unrolling
from linear_icl.transformers.model import ModelConfig
from linear_icl.transformers.score_attention import (
    PatternTransformer,
    Scores,
    ScoreTransformer,
    train_scores,
)

D, N, D_OUT, N_QUERY, LAYERS, RANK = 8, 8, 2, 2, 3, 5
STEPS, BATCH, SEEDS = 1500, 256, 2
# Two numbers a layer move together with the weights they make; single weights need small steps.
RATES = {"pattern": 3e-2, "linear": 1e-2, "relu": 1e-2, "softmax": 1e-2}
TEST_PROMPTS, TEST_SEED = 4096, 10**6
RATIO, CORRELATION = 4.0, 0.6
CONFIG = training.TrainingConfig(
    ModelConfig(d=D, n=N, d_out=D_OUT, n_query=N_QUERY, layers=LAYERS), rank=RANK
)
# (scores, heads, columns); "pattern" is linear with the pattern's numbers alone.
RUNS: list[tuple[str, int, str]] = [
    ("pattern", 1, "alike"),
    ("linear", 1, "alike"),
    ("linear", 4, "alike"),
    ("linear", 1, "unequal"),
    ("linear", 1, "correlated"),
    ("relu", 1, "alike"),
    ("relu", 2, "alike"),
    ("softmax", 1, "alike"),
    ("softmax", 2, "alike"),
]


def mixing(columns: str) -> Tensor:
    """T, with which the example columns are multiplied: A ← AT, B ← BT."""
    if columns == "alike":
        return torch.eye(N)
    if columns == "unequal":
        scale = RATIO ** torch.linspace(-0.5, 0.5, N)
        return (scale / scale.square().mean().sqrt()).diag()
    distance = (torch.arange(N)[:, None] - torch.arange(N)).abs()
    return torch.linalg.cholesky(CORRELATION**distance).mT.contiguous()


def prompts(columns: str):
    """The drawing function of :func:`train_scores`."""
    T = mixing(columns)

    def draw(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        A, B, C, D = training.draw_prompts(CONFIG, batch, generator)
        return A @ T, B @ T, C, D

    return draw


def cosine(W: np.ndarray, V: np.ndarray) -> float:
    """Of the angle between two matrices."""
    return float((W * V).sum() / (np.linalg.norm(W) * np.linalg.norm(V)))


def alignment(states: list[Tensor]) -> list[list[float]]:
    """cos² between a layer's change and EAGLE's, of (A, B) and of (C, D), the median prompt."""
    found = []
    for Z, after in pairwise(states):
        A, examples, change = Z[:, :D, :N], Z[:, :, :N], after - Z
        told = examples @ A.mT @ Z[:, :D]
        row = []
        for cut in (slice(0, N), slice(N, None)):
            true, said = change[..., cut].flatten(1), told[..., cut].flatten(1)
            square = torch.cosine_similarity(true, said, dim=1).square()
            row.append(float(square.nan_to_num(nan=0.0).median()))
        found.append(row)
    return found


def errors(model: ScoreTransformer, blocks: tuple[Tensor, ...], scale: float) -> dict:
    """Squared errors on prompts in other units, relative to predicting zero; None: infinite."""
    A, B, C, D = blocks
    error = (model(scale * A, scale * B, scale * C) / scale - D).square().mean(dim=(1, 2))
    error = error.double().nan_to_num(nan=torch.inf) / D.square().mean()
    return {
        "median": float(error.median()),
        "mean": float(error.mean()) if bool(torch.isfinite(error).all()) else None,
        "diverged": float((error > 100).double().mean()),
    }


@torch.no_grad()
def measure(model: ScoreTransformer, columns: str) -> dict:
    """What one trained model does, and what its weights look like."""
    blocks = prompts(columns)(TEST_PROMPTS, torch.Generator().manual_seed(TEST_SEED))
    W_QK, W_VP = (W.double().numpy() for W in model.merged())
    readings = [unrolling.read_layer(*pair, N) for pair in zip(W_QK, W_VP, strict=True)]
    T = mixing(columns).double().numpy()
    predicted = np.linalg.inv(T.T @ T)
    example_blocks = [(QK[0, :N, :N], VP[0, :N, :N]) for QK, VP in zip(W_QK, W_VP, strict=True)]
    report = {
        "errors": {f"{scale:g}": errors(model, blocks, scale) for scale in (0.5, 1.0, 2.0, 4.0)},
        "off_blocks": [r.off_blocks for r in readings],
        "off_pattern": [r.off_pattern for r in readings],
        "eta_rho": [r.eta_rho for r in readings],
        "gamma_rho": [r.gamma_rho for r in readings],
        "alignment": alignment(model.states(*blocks[:3])),
        "qk_with_identity": [abs(cosine(QK, np.eye(N))) for QK, _ in example_blocks],
        "qk_with_predicted": [abs(cosine(QK, predicted)) for QK, _ in example_blocks],
        "vp_with_identity": [abs(cosine(VP, np.eye(N))) for _, VP in example_blocks],
    }
    if W_QK.shape[1] == 2:
        report["cosine_of_the_heads"] = [
            [cosine(QK[0], QK[1]), cosine(VP[0], VP[1])] for QK, VP in zip(W_QK, W_VP, strict=True)
        ]
    if W_QK.shape[1] == 1:
        report["weights"] = [
            {"QK": QK[0].round(4).tolist(), "VP": VP[0].round(4).tolist()}
            for QK, VP in zip(W_QK, W_VP, strict=True)
        ]
    return report


def train_one(scores: str, heads: int, columns: str, seed: int) -> dict:
    """Train and measure one model."""
    torch.manual_seed(seed)
    if scores == "pattern":
        model: ScoreTransformer = PatternTransformer(N, N_QUERY, LAYERS)
    else:
        kind: Scores = scores  # type: ignore[assignment]
        model = ScoreTransformer(N, N_QUERY, LAYERS, heads, kind)
    began = time.process_time()
    losses = train_scores(
        model,
        prompts(columns),
        STEPS,
        batch=BATCH,
        learning_rate=RATES[scores],
        seed=1000 + seed,
    )
    report = {
        "scores": scores,
        "heads": heads,
        "columns": columns,
        "seed": seed,
        "weights_trained": sum(p.numel() for p in model.parameters()),
        "processor_seconds": round(time.process_time() - began, 1),
        "loss_first": losses[0],
        "loss_last": float(np.median(losses[-200:])),
        **measure(model, columns),
    }
    print(
        f"{scores:<8} {heads} {columns:<11} seed {seed}  {report['processor_seconds']:5.1f} s  "
        f"median error {report['errors']['1']['median']:.4f}",
        flush=True,
    )
    return report


def main() -> None:
    """Train, measure, save."""
    torch.set_num_threads(1)
    runs = [train_one(*run, seed) for run in RUNS for seed in range(SEEDS)]
    report = {
        "what": "squared errors relative to predicting zero, on fresh prompts",
        "sizes": {"d": D, "n": N, "d_out": D_OUT, "n_query": N_QUERY, "layers": LAYERS},
        "prompts": {"rank": RANK, "decay": CONFIG.decay},
        "training": {"steps": STEPS, "batch": BATCH, "learning_rates": RATES},
        "ratio": RATIO,
        "correlation": CORRELATION,
        "test_prompts": TEST_PROMPTS,
        "runs": runs,
        **provenance(threads=1, measured=("src", "benchmarks/implications.py")),
    }
    save("implications", report)


if __name__ == "__main__":
    main()
