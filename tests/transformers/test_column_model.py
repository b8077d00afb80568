"""Column-token models against the readable stack, and their training, baselines and files."""

import dataclasses

import numpy as np
import pytest
import torch

from linear_icl.transformers import attention, implicit_weights
from linear_icl.transformers.column_model import (
    ColumnConfig,
    ColumnTransformer,
    deepened,
    draw_regression,
    eigenbasis,
    embedded,
    gd_plus_plus_spectral,
    load_columns,
    noise_variance,
    ridge,
    save_columns,
    train_column,
)

SMALL = {"d": 3, "n": 8, "iterations": 20, "prompts": 256, "restarts": 2}


def prompts(config, batch=6, seed=0):
    return draw_regression(config, batch, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["gd++", "diagonal", "full"])
def test_the_model_predicts_what_the_stack_of_its_weights_does(kind):
    config = ColumnConfig(kind, d=3, n=8, layers=3, noise=1.0)
    model = ColumnTransformer(config)
    A, y, C, *_ = prompts(config)
    states = attention.column_stack(A.numpy(), y[:, None].numpy(), C.numpy(), model.pairs())
    expected = attention.read_out(states[-1])[:, 0]
    np.testing.assert_allclose(model(A, y, C).detach().numpy(), expected, atol=1e-12)
    w = implicit_weights.implicit_weights(A.numpy(), y.numpy(), model.pairs())[-1].w
    np.testing.assert_allclose((w[:, None] @ C.numpy())[:, 0], expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["gd++", "diagonal", "full"])
def test_training_lowers_the_error_and_a_seed_gives_the_same_run(kind):
    config = ColumnConfig(kind, layers=2, **SMALL)
    model, losses = train_column(config)
    A, y, C, t, _ = prompts(config, batch=500)
    assert (model(A, y, C) - t).square().mean() < 0.7 * t.square().mean()
    assert min(losses) < losses[0]
    again, _ = train_column(config)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_gd_plus_plus_in_the_eigenbasis_is_the_model():
    model = ColumnTransformer(ColumnConfig("gd++", d=3, n=8, layers=4, noise=1.0), start=1)
    A, y, C, *_ = prompts(model.config)
    spectral = gd_plus_plus_spectral(model.omega / 8, *eigenbasis(A, y, C))
    torch.testing.assert_close(spectral, model(A, y, C))


def test_a_second_layer_lowers_the_error_further():
    shallow, one = train_column(ColumnConfig("gd++", layers=1, **SMALL))
    deep, two = train_column(ColumnConfig("gd++", layers=2, **SMALL), [deepened(shallow, 0)])
    assert deep.config.layers == 2
    assert min(two) < 0.5 * min(one)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_gd_plus_plus_is_contained_in_the_other_kinds(kind):
    model = ColumnTransformer(ColumnConfig("gd++", d=3, n=8, layers=2))
    A, y, C, *_ = prompts(model.config)
    torch.testing.assert_close(embedded(model, kind)(A, y, C), model(A, y, C))
    with pytest.raises(ValueError, match=r"only GD\+\+"):
        embedded(embedded(model, kind), "full")


def test_a_deepened_model_repeats_one_layer():
    model = ColumnTransformer(ColumnConfig("full", d=3, layers=2))
    deep = deepened(model, 0)
    assert [torch.equal(Q, model.Q[k]) for Q, k in zip(deep.Q, (0, 0, 1), strict=True)] == [
        True
    ] * 3


def test_ridge_with_the_true_variance_beats_every_other_one():
    config = ColumnConfig("gd++", d=4, n=8, noise=3.0)
    A, y, C, t, sigma = prompts(config, batch=20_000)
    oracle = (ridge(A, y, C, sigma**2) - t).square().mean()
    for variance in (0.0, 1.0, 3.0, 9.0):
        assert oracle < (ridge(A, y, C, variance) - t).square().mean()


def test_the_estimated_noise_variance_is_unbiased():
    config = ColumnConfig("gd++", d=4, n=8, noise=3.0)
    A, y, *_, sigma = prompts(config, batch=50_000)
    ratio = (noise_variance(A, y) / sigma[:, 0] ** 2).mean().item()
    assert abs(ratio - 1) < 0.02
    with pytest.raises(ValueError, match="n must exceed d"):
        noise_variance(A[..., :4], y[..., :4])


def test_models_come_back_from_their_files_and_damage_is_refused(tmp_path):
    models = {k: ColumnTransformer(ColumnConfig(k, d=3, layers=2)) for k in ("gd++", "full")}
    save_columns(models, tmp_path)
    loaded = load_columns(tmp_path)
    assert loaded.keys() == models.keys()
    assert torch.equal(loaded["full"].Q, models["full"].Q)
    path = tmp_path / "columns.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="damaged"):
        load_columns(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path):
    model = ColumnTransformer(ColumnConfig("full", d=3, layers=2))
    model.config = dataclasses.replace(model.config, d=4)
    save_columns({"full": model}, tmp_path)
    with pytest.raises(ValueError, match="do not fit its manifest"):
        load_columns(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "sparse"}, "kind must be one of"),
        ({"layers": 0}, "layers must be a whole number"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"x": "cauchy"}, "x must be gaussian or uniform"),
    ],
)
def test_bad_configurations_are_refused_in_words(changes, words):
    with pytest.raises(ValueError, match=words):
        ColumnConfig(**{"kind": "full", **changes})


def test_full_weights_have_no_omegas():
    with pytest.raises(ValueError, match="no ω"):
        ColumnTransformer(ColumnConfig("full")).omegas()
