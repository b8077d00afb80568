"""Training: it learns, goes on bit for bit, and survives kills and damaged files."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.stats
import torch

from linear_icl.transformers import training
from linear_icl.transformers.model import ModelConfig
from linear_icl.transformers.training import TrainingConfig, draw_prompts, evaluate, load, train

SHAPE = {"d": 4, "n": 6, "d_out": 1, "n_query": 1, "layers": 2}
MODELS = {
    "unconstrained": ModelConfig(**SHAPE),
    "rank_limited": ModelConfig("rank_limited", rank=2, **SHAPE),
    "distributed": ModelConfig("distributed", machines=3, **SHAPE),
}


def tiny(regime="unconstrained", steps=20, **changes):
    return TrainingConfig(model=MODELS[regime], steps=steps, batch=16, rank=2, **changes)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("regime", MODELS)
def test_a_resumed_run_ends_with_the_same_bits(regime, tmp_path):
    whole = train(tiny(regime), tmp_path / "whole", checkpoint_every=10)
    train(tiny(regime, steps=10), tmp_path / "parts", checkpoint_every=10)
    parts = train(tiny(regime), tmp_path / "parts", resume=True, checkpoint_every=10)
    assert_same(weights(whole), weights(parts))
    first, second = (training.read_manifest(tmp_path / name) for name in ("whole", "parts"))
    assert first["history"] == second["history"]
    assert first["files"] == second["files"]


def test_training_lowers_the_error(tmp_path):
    config = tiny(steps=300, learning_rate=1e-2)
    train(config, tmp_path, checkpoint_every=100)
    history = training.read_manifest(tmp_path)["history"]
    assert [row["step"] for row in history] == [100, 200, 300]
    assert history[-1]["median"] < 0.5 * history[-1]["zero"]
    assert history[-1]["direct_median"] < 1e-10


def test_a_seed_gives_its_own_run_and_always_the_same(tmp_path):
    runs = [train(tiny(seed=s), tmp_path / str(k)) for k, s in enumerate((0, 0, 1))]
    assert_same(weights(runs[0]), weights(runs[1]))
    assert not torch.equal(runs[0].layers[0].W_Q, runs[2].layers[0].W_Q)


def test_a_gradient_that_overflows_is_skipped_and_counted(tmp_path):
    config = tiny(steps=4, scale=1e8)
    model = train(config, tmp_path)
    [row] = training.read_manifest(tmp_path)["history"]
    assert row["skipped"] == 4
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_load_gives_back_the_trained_model_and_its_manifest(tmp_path):
    model = train(tiny("distributed"), tmp_path)
    loaded, manifest = load(tmp_path)
    assert_same(weights(model), weights(loaded))
    assert TrainingConfig.from_dict(manifest["config"]) == tiny("distributed")
    assert manifest["step"] == 20
    assert {"versions", "seconds", "history"} <= manifest.keys()


def test_an_existing_run_is_not_overwritten(tmp_path):
    train(tiny(), tmp_path)
    with pytest.raises(FileExistsError, match="--resume"):
        train(tiny(), tmp_path)


def test_a_run_goes_on_only_with_its_own_configuration(tmp_path):
    train(tiny(), tmp_path)
    with pytest.raises(ValueError, match="another configuration"):
        train(dataclasses.replace(tiny(steps=30), batch=8), tmp_path, resume=True)


def kind(path, name):
    return next(path.glob(f"{name}-*.safetensors"))


@pytest.mark.parametrize("where", [0, 200, -1])
@pytest.mark.parametrize("name", ["weights", "state"])
def test_one_changed_byte_is_noticed(name, where, tmp_path):
    train(tiny(), tmp_path)
    path = kind(tmp_path, name)
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: its SHA-256"):
        load(tmp_path) if name == "weights" else train(tiny(steps=30), tmp_path, resume=True)


def test_a_truncated_file_is_refused(tmp_path):
    train(tiny(), tmp_path)
    path = kind(tmp_path, "weights")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="damaged"):
        load(tmp_path)


def test_a_missing_file_or_manifest_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"manifest\.json is missing"):
        load(tmp_path)
    train(tiny(), tmp_path)
    kind(tmp_path, "weights").unlink()
    with pytest.raises(FileNotFoundError, match="named by the manifest but missing"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "not valid JSON"), ('{"step": 1}', "lacks config, files, history")]
)
def test_a_broken_manifest_is_refused(text, words, tmp_path):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        load(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path):
    train(tiny(), tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["config"]["model"]["n"] = 7
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="do not have the shapes of their configuration"):
        load(tmp_path)


ENDLESS = """
import sys
sys.path.insert(0, sys.argv[2])
from test_training import tiny
from linear_icl.transformers.training import train
train(tiny(steps=10**6), sys.argv[1], checkpoint_every=2, resume=True)
"""


@contextlib.contextmanager
def training_elsewhere(folder):
    """A process that trains in the folder, from its first checkpoint until it is killed."""
    command = [sys.executable, "-c", ENDLESS, str(folder), os.path.dirname(__file__)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 300  # a loaded machine takes long to import torch
        while not (folder / "manifest.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("delay", [0.0, 0.17])
def test_a_run_that_is_killed_leaves_a_whole_checkpoint(delay, tmp_path):
    with training_elsewhere(tmp_path):
        time.sleep(delay)
    _, manifest = load(tmp_path)
    step = manifest["step"]
    assert step >= 2
    train(tiny(steps=step + 2), tmp_path, resume=True, checkpoint_every=2)
    assert training.read_manifest(tmp_path)["step"] == step + 2
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_two_processes_never_train_in_one_folder(tmp_path):
    refused = pytest.raises(ValueError, match="another process is at work in")
    with training_elsewhere(tmp_path), refused:
        train(tiny(steps=10**6), tmp_path, resume=True)
    train(tiny(steps=1), tmp_path, resume=True)  # whoever is killed lets go


def test_prompts_have_the_published_law():
    config = TrainingConfig()
    generator = torch.Generator().manual_seed(0)
    A, B, C, D = draw_prompts(config, 4000, generator)
    X = torch.cat([torch.cat([A, C], -1), torch.cat([B, D], -1)], -2)
    assert X.shape == (4000, 20, 20)
    assert int(torch.linalg.matrix_rank(X[0], rtol=1e-5)) == 10
    # E X_ij² = Σ_k (α^k)²/s, k = 1..s.
    expected = sum(0.49**k for k in range(1, 11)) / 10
    assert float(X.square().mean()) == pytest.approx(expected, rel=0.03)


def test_rotated_prompts_have_the_law_of_the_r_factor():
    config = TrainingConfig()
    drawn = draw_prompts(config, 20_000, torch.Generator().manual_seed(0))
    rotated = draw_prompts(config, 20_000, torch.Generator().manual_seed(1), rotated=True)
    assert [block.shape[1] for block in rotated] == [10, 2, 10, 2]
    # [A C] rotated so that it is upper triangular times R₂ᵀ has the Gram matrix of [A C]: traces
    # of its powers, and of its products with B and D, have the same law.
    for power in (1, 2, 3):
        traces = []
        for A, B, C, D in (drawn, rotated):
            keys, rows = torch.cat([A, C], -1), torch.cat([B, D], -1)
            gram = torch.linalg.matrix_power((keys.mT @ keys).double(), power)
            values = torch.diagonal(gram, dim1=1, dim2=2).sum(-1)
            cross = (rows.double() @ gram @ rows.double().mT).diagonal(dim1=1, dim2=2).sum(-1)
            traces.append((values, cross))
        for ours, theirs in zip(*traces, strict=True):
            assert scipy.stats.ks_2samp(ours, theirs).pvalue > 1e-3


def test_noisy_prompts_and_prompts_of_full_rank_are_not_narrowed():
    for config in (TrainingConfig(noise=0.01), TrainingConfig(rank=18)):
        A, *_ = draw_prompts(config, 3, torch.Generator().manual_seed(0), rotated=True)
        assert A.shape == (3, 18, 18)


def test_noise_has_the_variance_asked_for():
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    clean = draw_prompts(TrainingConfig(), 500, generators[0])
    noisy = draw_prompts(TrainingConfig(noise=0.01), 500, generators[1])
    difference = torch.cat([(a - b).flatten() for a, b in zip(noisy, clean, strict=True)])
    assert float(difference.var()) == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_estimation_asks_for_the_weights_of_minimum_norm(rank):
    model = ModelConfig(d=5, n=7, d_out=2, n_query=5)
    config = TrainingConfig(model=model, rank=rank, task="estimation")
    for rotated in (False, True):
        generator = torch.Generator().manual_seed(rank)
        A, B, C, D = draw_prompts(config, 50, generator, rotated=rotated)
        np.testing.assert_array_equal(C, np.broadcast_to(np.eye(5), (50, 5, 5)))
        U, sigma, Vh = np.linalg.svd(A.double().numpy())
        inverse = Vh[:, :rank].swapaxes(1, 2) / sigma[:, None, :rank] @ U[..., :rank].swapaxes(1, 2)
        np.testing.assert_allclose(D, B.double().numpy() @ inverse, rtol=0.02, atol=0.02)


def test_noise_leaves_the_weights_to_be_estimated_alone():
    model = ModelConfig(d=5, n=7, d_out=2, n_query=5)
    drawn = [
        draw_prompts(
            TrainingConfig(model=model, rank=3, task="estimation", noise=noise),
            50,
            torch.Generator().manual_seed(1),
        )
        for noise in (0.0, 0.01)
    ]
    assert not torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][3], drawn[1][3])


def test_a_task_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="task must be one of"):
        TrainingConfig(task="prediction")
    with pytest.raises(ValueError, match="n_query = d"):
        TrainingConfig(task="estimation")
    with pytest.raises(ValueError, match="<= min"):
        TrainingConfig(model=ModelConfig(n_query=18), rank=17, task="estimation")
    with pytest.raises(ValueError, match="rank = 4"):
        TrainingConfig(model=ModelConfig(n=3, n_query=18), rank=4, task="estimation")


@pytest.mark.parametrize("rank", [0, -1, 2.5, "3", None, True])
def test_a_rank_that_is_no_whole_number_is_refused(rank):
    with pytest.raises(ValueError, match="rank must be a whole number"):
        TrainingConfig(rank=rank)


def test_a_model_that_estimates_is_trained_and_resumed(tmp_path):
    model = ModelConfig(d=4, n=6, d_out=2, n_query=4, layers=2)
    config = TrainingConfig(model=model, steps=2, batch=16, rank=2, task="estimation")
    train(config, tmp_path)
    longer = dataclasses.replace(config, steps=4)
    train(longer, tmp_path, resume=True)
    _, manifest = load(tmp_path)
    assert (manifest["step"], manifest["config"]["task"]) == (4, "estimation")
    with pytest.raises(ValueError, match=r"configuration: task is estimation, not completion$"):
        train(dataclasses.replace(longer, task="completion"), tmp_path, resume=True)


def test_a_diverged_prompt_is_counted_and_stays_in_the_mean():
    config = tiny()
    model = training.LinearTransformer(config.model, scale=1e10)
    found = evaluate(model, config, prompts=32)
    assert found["diverged"] == 1.0
    assert found["mean"] > 1e10


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_direct_solution_is_far_better_than_zero(noise):
    found = evaluate(training.LinearTransformer(MODELS["unconstrained"]), tiny(noise=noise), 200)
    assert found["direct_median"] < 0.5 * found["zero"]
    assert np.isfinite(found["direct_mean"])


def test_a_training_that_can_only_skip_gives_up_and_says_why(tmp_path):
    config = tiny(steps=training.HOPELESS + 50, scale=1e10)
    with pytest.raises(FloatingPointError, match="smaller initial weights than scale = 1e"):
        train(config, tmp_path, checkpoint_every=60)
    assert training.read_manifest(tmp_path)["step"] == 60  # the last checkpoint stays


def test_a_run_whose_steps_were_all_skipped_goes_on(tmp_path):
    config = tiny(steps=2, scale=1e10)
    train(config, tmp_path)
    train(dataclasses.replace(config, steps=3), tmp_path, resume=True)
    assert training.read_manifest(tmp_path)["step"] == 3


@pytest.mark.parametrize(
    ("part", "value"),
    [("foo", 1), ("model", None), ("model", {"foo": 1}), ("task", "guess"), ("rank", "5")],
)
def test_a_configuration_that_is_not_one_is_refused_with_its_file(tmp_path, part, value):
    train(tiny(steps=1), tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["config"][part] = value
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"configuration in .*manifest\.json"):
        load(tmp_path)


def test_models_that_come_with_the_package_load():
    for name in training.shipped_names():
        model, manifest = training.shipped(name)
        # Adam's state comes along only with what is still to be trained on.
        unfinished = manifest["step"] < manifest["config"]["steps"]
        allowed = {"weights", "state"} if unfinished else {"weights"}
        assert {"weights"} <= manifest["files"].keys() <= allowed
        config = TrainingConfig.from_dict(manifest["config"])
        kind = model.config.regime if config.task == "completion" else config.task
        assert name.startswith(f"{kind}-seed{config.seed}")


def test_a_shipped_model_is_found_by_name_and_cannot_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINTS", tmp_path)
    model = train(tiny(), tmp_path / "tiny")
    manifest = training.read_manifest(tmp_path / "tiny")
    del manifest["files"]["state"]
    (tmp_path / "tiny" / "manifest.json").write_text(json.dumps(manifest))
    assert training.shipped_names() == ["tiny"]
    assert_same(weights(training.shipped("tiny")[0]), weights(model))
    with pytest.raises(ValueError, match="there are: tiny"):
        training.shipped("huge")
    with pytest.raises(ValueError, match="holds no state; it cannot be resumed"):
        train(tiny(steps=30), tmp_path / "tiny", resume=True)


@pytest.mark.parametrize(("device", "words"), [("toaster", "such as 'cpu'")])
def test_a_device_that_does_not_exist_is_refused(device, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        train(tiny(), tmp_path, device=device)
