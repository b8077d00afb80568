"""Train a linear transformer to fill the missing block of prompts: one loop, resumable.

linear-icl train unconstrained --seed 0 --steps 20000 -o runs/u0
linear-icl train unconstrained --seed 0 --steps 20000 -o runs/u0 --resume
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import safetensors.torch
import torch
from torch import Tensor
from tqdm import tqdm

import linear_icl
from linear_icl.files import holding, replacing, write_text
from linear_icl.transformers.model import LinearTransformer, ModelConfig

Task = Literal["completion", "estimation"]


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The recipe of Lutz et al. (2025), appendix B; every default is the published value.

    Attributes
    ----------
    model : ModelConfig
        What is trained.
    seed : int
        Seeds the weights and the prompts.
    steps, batch : int
        Adam steps, and fresh prompts a step.
    learning_rate, clip : float
        Adam's constant rate, and the 2-norm to which gradients are clipped. Loss spikes come
        from prompts of unusually large ‖A‖₂; beside the clipping, a step whose gradient norm
        overflows is skipped (and counted in the history); a hundred of them in a row end the
        training with an error. Nothing else is done about them.
    rank, decay : int, float
        s and α of the prompts X = R₁R₂ᵀ/√s, rows of R ~ N(0, diag(αⁱ)), i = 1..s.
    noise : float
        Variance of Gaussian noise on all of X (in estimation on A and B).
    scale : float
        Standard deviation of the initial weights (not published).
    task : {"completion", "estimation"}
        Completion: A, B, C are blocks of X, and D is the fourth. Estimation: the query block is
        C = I, so that the answer D = W* = BA⁺ are the weights themselves, those of A and B
        before noise is added. Estimation needs n_query = d and rank <= min(d - 2, n): with more
        than n directions BA⁺ is no longer what made the data, and from d - 1 on the entries of
        W* have no variance, so that a mean squared error says nothing.

    Raises
    ------
    ValueError
        Another task, a rank or batch that is no whole number >= 1, or estimation with another
        n_query or a larger rank.
    """

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    seed: int = 0
    steps: int = 20_000
    batch: int = 1024
    learning_rate: float = 1e-3
    clip: float = 0.1
    rank: int = 10
    decay: float = 0.7
    noise: float = 0.0
    scale: float = 0.1
    task: Task = "completion"

    def __post_init__(self) -> None:
        if not (isinstance(self.task, str) and self.task in get_args(Task)):
            raise ValueError(f"task must be one of {', '.join(get_args(Task))}, got {self.task!r}")
        for name in ("rank", "batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
        model = self.model
        largest = min(model.d - 2, model.n)
        if self.task == "estimation" and (model.n_query != model.d or self.rank > largest):
            raise ValueError(
                f"estimation needs n_query = d = {model.d} and rank <= min(d - 2, n) = {largest}, "
                f"got n_query = {model.n_query}, rank = {self.rank}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainingConfig:
        """The inverse of :meth:`to_dict`."""
        try:
            return cls(**{**values, "model": ModelConfig(**values["model"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a training configuration: {error}") from None


HOPELESS = 100  # steps that may be skipped in a row before training gives up

# The models of the three regimes as they were published.
PUBLISHED = {
    "unconstrained": ModelConfig(),
    "rank_limited": ModelConfig("rank_limited", rank=5),
    "distributed": ModelConfig("distributed", machines=3),
}


def draw_prompts(
    config: TrainingConfig,
    batch: int,
    generator: torch.Generator,
    device: str = "cpu",
    *,
    rotated: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fresh prompts A, B, C, D of shape (batch, ·, ·), cut from X = R₁R₂ᵀ/√s (+ noise).

    In estimation C is the identity and D = W*, with B = W*A of minimum norm before the noise.

    The model meets the rows of [A C] in the products KᵀK only and does not see a rotation of
    them. With ``rotated``, prompts of rank s < d without noise are drawn as they look after the
    rotation that makes all but the first s of these rows zero, and the zero rows are left out:
    A and C have s rows, the loss has the same law, and a step costs (s + d')/(d + d') as much.
    (Estimation has no zero rows to leave out: its C is of full rank.)
    """
    model, estimation = config.model, config.task == "estimation"
    rows, columns = model.d + model.d_out, model.n + (0 if estimation else model.n_query)
    # The variances αⁱ sit on one factor: R₁ diag(α^½) diag(α^½) R₂ᵀ = (R₁ diag(α)) R₂ᵀ.
    variance = config.decay ** torch.arange(1, config.rank + 1, dtype=torch.float32)
    left = torch.randn(batch, rows, config.rank, generator=generator)
    right = torch.randn(batch, config.rank, columns, generator=generator)
    if rotated and config.rank < model.d and config.noise == 0 and not estimation:
        # R of the QR factors of a Gaussian matrix: entries N(0, 1) above a diagonal that holds
        # the norm of what is left of each column (Bartlett).
        top, rest = left[:, : model.d], left[:, model.d :]
        diagonal = torch.diag_embed(top.tril().square().sum(dim=1).sqrt())
        left = torch.cat([top[:, : config.rank].triu(1) + diagonal, rest], dim=1)
    X = (left * (variance / config.rank**0.5)) @ right
    if config.noise > 0:
        X = X + config.noise**0.5 * torch.randn(batch, rows, columns, generator=generator)
    X = X.to(device)
    d, n = X.shape[1] - model.d_out, model.n
    A, B = X[:, :d, :n], X[:, d:, :n]
    if estimation:
        # A = FG and B = HG, G of full row rank: W* = HF⁺, whatever the variances are.
        F, H = left[:, :d], left[:, d:]
        weights = torch.linalg.solve(F.mT @ F, H, left=False) @ F.mT
        return A, B, torch.eye(d, device=X.device).expand(batch, d, d), weights.to(device)
    return A, B, X[:, :d, n:], X[:, d:, n:]


def direct(config: TrainingConfig, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The direct solution BA⁺C in float64; with noise, and in estimation, of s directions only.

    There the rank is known to the solver: what lies beyond it in A is noise or round-off.
    """
    A, B, C = A.double(), B.double(), C.double()
    if config.noise == 0 and config.task == "completion":
        return B @ torch.linalg.pinv(A, rtol=1e-6) @ C  # the prompts are float32
    U, sigma, Vh = torch.linalg.svd(A, full_matrices=False)
    s = config.rank
    return ((B @ Vh.mT[..., :s]) / sigma[:, None, :s]) @ U.mT[:, :s] @ C


@torch.no_grad()
def evaluate(model: LinearTransformer, config: TrainingConfig, prompts: int = 4096) -> dict:
    """Errors on held-out prompts, beside those of predicting zero and of the direct solution.

    A prompt has *diverged* when its squared error exceeds 100 times that of predicting zero.
    The mean is over all prompts, diverged ones included.
    """
    generator = torch.Generator().manual_seed(2**31 + config.seed)
    device = next(model.parameters()).device
    A, B, C, D = draw_prompts(config, prompts, generator, str(device))
    error = (model(A, B, C) - D).square().mean(dim=(1, 2)).double().cpu().numpy()
    direct_error = (direct(config, A, B, C) - D).square().mean(dim=(1, 2)).cpu().numpy()
    zero = float(D.square().mean())
    error = np.nan_to_num(error, nan=np.inf)
    return {
        "mean": float(error.mean()),
        "median": float(np.median(error)),
        "diverged": float((error > 100 * zero).mean()),
        "zero": zero,
        "ratio": zero / float(error.mean()),
        "direct_mean": float(direct_error.mean()),
        "direct_median": float(np.median(direct_error)),
        "prompts": prompts,
    }


def train(
    config: TrainingConfig,
    out: str | Path,
    *,
    resume: bool = False,
    device: str = "cpu",
    checkpoint_every: int = 1000,
) -> LinearTransformer:
    """Train, and leave weights, optimiser state and a manifest in the folder ``out``.

    The folder always holds one whole checkpoint: its files carry the step in their names, and
    the manifest that points to them is renamed into place last. A process killed at any moment
    loses the steps since the last checkpoint; ``resume`` goes on bit for bit on one machine.

    Raises
    ------
    FileExistsError
        ``out`` holds a run already and ``resume`` is False.
    ValueError
        The run in ``out`` has another configuration, its files are damaged, another process is
        training in it, or there is no such device here.
    FloatingPointError
        The gradient has overflowed in 100 steps in a row: initial weights too large for the
        prompts. The last checkpoint, if there is one, stays.
    """
    _check_device(device)
    with holding(Path(out)):
        return _train(config, Path(out), resume, device, checkpoint_every)


def _train(
    config: TrainingConfig, out: Path, resume: bool, device: str, checkpoint_every: int
) -> LinearTransformer:
    manifest_path = out / "manifest.json"
    torch.manual_seed(config.seed)
    model = LinearTransformer(config.model, config.scale).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    generator = torch.Generator().manual_seed(config.seed + 1)
    step, seconds = 0, 0.0
    history: list[dict] = []
    if manifest_path.exists():
        if not resume:
            raise FileExistsError(
                f"{out} holds a run already; pass resume=True (--resume) to go on"
            )
        manifest = read_manifest(out)
        different = _differences(TrainingConfig.from_dict(manifest["config"]), config)
        if different:
            raise ValueError(f"{out} was trained with another configuration: {different}")
        step, history, seconds = manifest["step"], manifest["history"], manifest["seconds"]
        model.load_state_dict(_read_tensors(out, manifest, "weights"))
        _restore(optimiser, generator, model, _read_tensors(out, manifest, "state"))

    losses: list[Tensor] = []
    skipped = in_a_row = 0
    started = time.perf_counter() - seconds
    progress = tqdm(total=config.steps, initial=step, disable=not sys.stderr.isatty())
    while step < config.steps:
        A, B, C, D = draw_prompts(config, config.batch, generator, device, rotated=True)
        loss = (model(A, B, C) - D).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        # One prompt of huge ‖A‖₂ can overflow float32; clipped, its gradient would be NaN.
        if bool(torch.isfinite(norm)):
            optimiser.step()
            in_a_row = 0
        else:
            skipped, in_a_row = skipped + 1, in_a_row + 1
            if in_a_row == HOPELESS:
                raise FloatingPointError(
                    f"the gradient overflowed in each of the last {HOPELESS} steps (up to step "
                    f"{step + 1}), so nothing is being learned; prompts of this size need smaller "
                    f"initial weights than scale = {config.scale:g}"
                )
        step += 1
        losses.append(loss.detach())
        progress.update()
        if step % 100 == 0:
            progress.set_postfix(loss=f"{float(torch.stack(losses[-100:]).median()):.2e}")
        if step % checkpoint_every == 0 or step == config.steps:
            window = torch.stack(losses).double().cpu().numpy()
            losses = []
            row = {
                "step": step,
                "loss_median": float(np.median(window)),
                "loss_max": float(np.nan_to_num(window, nan=np.inf).max()),
                "skipped": skipped,
                **evaluate(model, config),
            }
            history.append(row)
            skipped = 0
            seconds = time.perf_counter() - started
            _write_checkpoint(out, config, step, history, seconds, model, optimiser, generator)
    progress.close()
    return model


def load(folder: str | Path) -> tuple[LinearTransformer, dict]:
    """The model of a checkpoint and its manifest; damaged or foreign files are refused.

    Raises
    ------
    FileNotFoundError
        No manifest, or a file that it names is missing.
    ValueError
        A file whose hash is not the manifest's (truncated or corrupted), or weights of other
        shapes than the manifest's configuration.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    config = TrainingConfig.from_dict(manifest["config"])
    model = LinearTransformer(config.model)
    tensors = _read_tensors(folder, manifest, "weights")
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    if expected != found:
        wrong = sorted(name for name in expected | found if expected.get(name) != found.get(name))
        raise ValueError(
            f"the weights in {folder} do not have the shapes of their configuration: "
            + ", ".join(f"{n} {found.get(n)} instead of {expected.get(n)}" for n in wrong[:3])
        )
    model.load_state_dict(tensors)
    return model.eval(), manifest


CHECKPOINTS = Path(__file__).parent / "checkpoints"


def shipped_names() -> list[str]:
    """The trained models that come with the package, such as ``unconstrained-seed0``."""
    return sorted(path.parent.name for path in CHECKPOINTS.glob("*/manifest.json"))


def shipped(name: str) -> tuple[LinearTransformer, dict]:
    """A trained model that comes with the package, and its manifest.

    Parameters
    ----------
    name : str
        One of :func:`shipped_names`.

    Raises
    ------
    ValueError
        No such model, or its files are damaged.
    """
    if name not in shipped_names():
        known = ", ".join(shipped_names()) or "none"
        raise ValueError(f"no trained model {name!r} comes with the package; there are: {known}")
    return load(CHECKPOINTS / name)


def read_manifest(folder: str | Path) -> dict:
    """The manifest of a checkpoint folder, checked for the fields that everything else needs."""
    path = Path(folder) / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint in {folder}: {path.name} is missing")
    try:
        manifest = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    missing = {"config", "step", "history", "files"} - set(manifest)
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
    try:
        TrainingConfig.from_dict(manifest["config"])
    except ValueError as error:
        raise ValueError(f"the configuration in {path} is not valid: {error}") from None
    return manifest


def _read_tensors(folder: Path, manifest: dict, kind: str) -> dict[str, Tensor]:
    entry = manifest["files"].get(kind)
    if entry is None:
        raise ValueError(f"the checkpoint in {folder} holds no {kind}; it cannot be resumed")
    path = folder / entry["name"]
    if not path.exists():
        raise FileNotFoundError(f"{path} is named by the manifest but missing")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise ValueError(f"{path} is damaged: its SHA-256 is not the one in the manifest")
    return safetensors.torch.load(content)


def _state(
    optimiser: torch.optim.Optimizer, generator: torch.Generator, model: LinearTransformer
) -> dict[str, Tensor]:
    tensors = {"generator": generator.get_state()}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state[parameter].items():
            tensors[f"adam.{key}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return tensors


def _restore(
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
    model: LinearTransformer,
    tensors: dict[str, Tensor],
) -> None:
    generator.set_state(tensors["generator"])
    for name, parameter in model.named_parameters():
        if f"adam.step.{name}" in tensors:  # not before the first step that was not skipped
            optimiser.state[parameter] = {
                key: tensors[f"adam.{key}.{name}"].to(parameter.device)
                for key in ("step", "exp_avg", "exp_avg_sq")
            }


def _write_checkpoint(
    out: Path,
    config: TrainingConfig,
    step: int,
    history: list[dict],
    seconds: float,
    model: LinearTransformer,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    files = {}
    for kind, tensors in (("weights", weights), ("state", _state(optimiser, generator, model))):
        name = f"{kind}-{step:06d}.safetensors"
        content = safetensors.torch.save(tensors)
        with replacing(out / name) as stream:
            stream.write(content)
        files[kind] = {"name": name, "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {
        "config": config.to_dict(),
        "step": step,
        "files": files,
        "seconds": round(seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": {
            "linear_icl": linear_icl.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "history": history,
    }
    write_text(out / "manifest.json", json.dumps(manifest, indent=1))
    kept = {entry["name"] for entry in files.values()}
    for path in out.glob("*.safetensors"):
        if path.name not in kept:
            path.unlink()


def _differences(there: TrainingConfig, asked: TrainingConfig) -> str:
    """What differs, but for the number of steps: "noise is 0.0, not 0.01"."""

    def flat(config: TrainingConfig) -> dict[str, Any]:
        values = config.to_dict()
        return values | {f"model.{name}": value for name, value in values.pop("model").items()}

    pairs = ((name, value, flat(asked)[name]) for name, value in flat(there).items())
    return ", ".join(
        f"{name} is {value}, not {other}"
        for name, value, other in pairs
        if value != other and name != "steps"
    )


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"device must be such as 'cpu' or 'cuda:0', got {device!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no GPU here; use 'cpu'")
