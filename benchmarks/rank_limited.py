"""Why rank-limited training settles near 6 times: what r columns can tell, and other starts.

python benchmarks/rank_limited.py

First, what the *exact* solution reaches that sees the prompt through one sketch of rank r: an upper
mark for a network that reads its examples through one sketch. Then short trainings that change one
thing each: the initial scale, the learning rate, the rank, and starts that already hold EAGLE with
sketches shared by the layers, disjoint, or independent. Smaller batch and fewer steps than
published: what is asked is which change matters. About 3 minutes of one core.
"""

from __future__ import annotations

import numpy as np
import torch
from provenance import RESULTS, provenance, save

from linear_icl.transformers import constructions
from linear_icl.transformers.model import LinearTransformer, ModelConfig
from linear_icl.transformers.training import TrainingConfig, draw_prompts, evaluate

STEPS, BATCH, RANK = 1500, 256, 5
VARIANTS: dict[str, dict] = {
    "as published, N(0, 0.1²)": {},
    "EAGLE, one shared sketch": {"start": "shared"},
    "EAGLE, disjoint sketches": {"start": "disjoint"},
    "EAGLE, independent sketches": {"start": "independent"},
    "N(0, 0.2²)": {"scale": 0.2},
    "rate 3e-3, falling": {"rate": 3e-3},
    "rank 8": {"rank": 8},
}


def through_a_sketch(rank: int, prompts: int = 4096) -> dict[str, float]:
    """Errors of B S (A S)⁺ C with one Haar sketch S of that rank."""
    generator = torch.Generator().manual_seed(1)
    A, B, C, D = (block.double() for block in draw_prompts(TrainingConfig(), prompts, generator))
    S = torch.linalg.qr(torch.randn(18, rank, generator=generator, dtype=torch.float64))[0]
    error = (B @ S @ torch.linalg.pinv(A @ S, rtol=1e-6) @ C - D).square().mean(dim=(1, 2))
    zero = float(D.square().mean())
    return {
        "zero_over_mean": zero / max(float(error.mean()), 1e-20),
        "zero_over_median": zero / max(float(error.median()), 1e-20),
    }


def begin(model: LinearTransformer, start: str, rank: int, rng: np.random.Generator) -> None:
    """Write EAGLE with the typical step sizes of these prompts into the weights."""
    whole = np.linalg.qr(rng.standard_normal((18, 18)))[0]
    for number, layer in enumerate(model.layers):
        S = {
            "shared": whole[:, :rank],
            "disjoint": np.roll(whole, -number * rank, axis=1)[:, :rank],
            "independent": np.linalg.qr(rng.standard_normal((18, rank)))[0],
        }[start]
        [(W_Q, W_K, W_V, W_P)] = constructions.eagle_factors(18, 2, [0.06], [0.12], sketches=[S])
        # V and P share their size, so that neither learns faster than the other.
        for parameter, values in (("W_Q", W_Q), ("W_K", W_K), ("W_V", W_V / 3), ("W_P", 3 * W_P)):
            with torch.no_grad():
                getattr(layer, parameter)[0] = torch.as_tensor(values, dtype=torch.float32)


def short_training(
    *, start: str | None = None, scale: float = 0.1, rate: float = 1e-3, rank: int = RANK
) -> dict[str, float]:
    """The published loop, shortened, with one thing changed."""
    config = TrainingConfig(
        model=ModelConfig("rank_limited", rank=rank), batch=BATCH, scale=scale, learning_rate=rate
    )
    torch.manual_seed(0)
    model = LinearTransformer(config.model, scale)
    if start is not None:
        begin(model, start, rank, np.random.default_rng(7))
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(STEPS):
        if rate != TrainingConfig.learning_rate:
            optimiser.param_groups[0]["lr"] = rate * min(1.0, 2 * (1 - step / STEPS))
        A, B, C, D = draw_prompts(config, BATCH, generator)
        loss = (model(A, B, C) - D).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        if bool(torch.isfinite(norm)):
            optimiser.step()
        losses.append(loss.item())
    found = evaluate(model, config)
    zero = found["zero"]
    return {
        # The median over batches of the batch mean: spikes do not decide it.
        "zero_over_loss": zero / float(np.median(losses[-300:])),
        "zero_over_mean": found["ratio"],
        "zero_over_median": zero / found["median"],
        "diverged": found["diverged"],
    }


def main() -> None:
    """Measure and save after every variant."""
    torch.set_num_threads(1)
    report: dict = {
        "what": "mean |D|² divided by the squared error left, on fresh prompts",
        "steps": STEPS,
        "batch": BATCH,
        "exact": {str(r): through_a_sketch(r) for r in (3, 5, 6, 8, 10)},
        "trained": {},
        **provenance(threads=1),
    }
    RESULTS.mkdir(exist_ok=True)
    for name, changes in VARIANTS.items():
        report["trained"][name] = short_training(**changes)
        print(name, report["trained"][name], flush=True)
        save("rank_limited", report)


if __name__ == "__main__":
    main()
