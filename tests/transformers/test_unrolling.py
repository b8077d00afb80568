"""Unrolling: weights set by the constructions are read back, and nothing else is invented."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linear_icl.transformers import constructions, training, unrolling
from linear_icl.transformers.model import LinearTransformer, ModelConfig
from linear_icl.transformers.training import TrainingConfig

ETA_RHO, GAMMA_RHO = [0.2, 0.3, 0.25], [0.5, 0.7, 0.9]
SHAPE = {"d": 5, "n": 6, "d_out": 2, "n_query": 2, "layers": 3}


def sketches():
    rng = np.random.default_rng(0)
    return [np.linalg.qr(rng.normal(size=(6, 3)))[0] for _ in range(3)]


def set_factors(model, factors):
    """Give every layer's only head these W_Q, W_K, W_V and W_P."""
    with torch.no_grad():
        for layer, four in zip(model.layers, factors, strict=True):
            for name, W in zip(("W_Q", "W_K", "W_V", "W_P"), four, strict=True):
                getattr(layer, name)[0] = torch.from_numpy(W)


def constructed(regime):
    """A model whose weights are EAGLE's, and its configuration."""
    if regime == "distributed":
        config = ModelConfig("distributed", machines=3, **SHAPE)
        model = LinearTransformer(config).double()
        layers = constructions.eagle_distributed(2, 2, 3, ETA_RHO, GAMMA_RHO)
        with torch.no_grad():
            for layer, (W_QK, W_VP) in zip(model.layers, layers, strict=True):
                layer.W_Q[0], layer.W_K[0] = torch.from_numpy(W_QK), torch.eye(4)
                layer.W_V[0] = torch.eye(4)
                # Rows of W_P of head μ: one block a machine that it writes to, transposed.
                layer.W_P[:] = torch.from_numpy(W_VP.swapaxes(-1, -2).reshape(3, 12, 4))
        return model, config
    rank = 3 if regime == "rank_limited" else None
    config = ModelConfig(regime, rank=rank, **SHAPE)
    model = LinearTransformer(config).double()
    factors = constructions.eagle_factors(
        6, 2, ETA_RHO, GAMMA_RHO, None if rank is None else sketches()
    )
    set_factors(model, factors)
    return model, config


REGIMES = ["unconstrained", "rank_limited", "distributed"]


def read(model, config):
    pairs = unrolling.merged_weights(model)
    n = config.columns - config.n_query
    return pairs, [unrolling.read_layer(*pair, n, rank=config.rank) for pair in pairs]


def prompts(config, batch=4):
    generator = torch.Generator().manual_seed(1)
    return [
        block.double()
        for block in training.draw_prompts(TrainingConfig(model=config), batch, generator)
    ]


@pytest.mark.parametrize("regime", REGIMES)
def test_constructed_weights_are_read_back(regime):
    _, readings = read(*constructed(regime))
    for reading, eta_rho, gamma_rho in zip(readings, ETA_RHO, GAMMA_RHO, strict=True):
        assert reading.eta_rho == pytest.approx(eta_rho, rel=1e-12)
        assert reading.gamma_rho == pytest.approx(gamma_rho, rel=1e-12)
        np.testing.assert_allclose(reading.alpha1, 1, rtol=1e-12)
        np.testing.assert_allclose(reading.off_pattern, 0, atol=1e-20)
        np.testing.assert_allclose(reading.off_blocks, 0, atol=1e-20)


def test_the_sketch_is_read_back_up_to_a_rotation():
    _, readings = read(*constructed("rank_limited"))
    for reading, S in zip(readings, sketches(), strict=True):
        np.testing.assert_allclose(reading.sketch @ reading.sketch.T, S @ S.T, atol=1e-12)


@pytest.mark.parametrize("regime", REGIMES)
def test_merged_weights_run_as_the_model_does(regime):
    torch.manual_seed(0)
    _, config = constructed(regime)
    model = LinearTransformer(config, scale=0.3).double()
    A, B, C, _ = prompts(config)
    for Z, expected in zip(
        unrolling.forward(unrolling.merged_weights(model), A, B, C),
        model.states(A, B, C),
        strict=True,
    ):
        joint = np.concatenate(list(np.moveaxis(Z, 1, 0)), axis=-1)
        np.testing.assert_allclose(joint, expected.detach().numpy(), rtol=1e-10, atol=1e-12)
    D = unrolling.prediction(Z, config.d, config.n_query)
    np.testing.assert_allclose(D, model(A, B, C).detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("regime", REGIMES)
def test_the_rebuilt_algorithm_of_constructed_weights_is_the_network(regime):
    model, config = constructed(regime)
    A, B, C, _ = prompts(config)
    pairs, readings = read(model, config)
    network = unrolling.forward(pairs, A, B, C)
    for kept in (None, pairs):
        rebuilt = unrolling.rebuild(readings, config.n_query, keep_blocks=kept)
        found = unrolling.fidelity(network, unrolling.forward(rebuilt, A, B, C))
        np.testing.assert_allclose(found, 0, atol=1e-18)


@pytest.mark.parametrize("regime", REGIMES)
def test_dropping_what_is_off_the_blocks_leaves_the_blocks(regime):
    torch.manual_seed(1)
    _, config = constructed(regime)
    pairs, readings = read(LinearTransformer(config), config)
    n = config.columns - config.n_query
    for (QK, VP), (kept_QK, kept_VP) in zip(
        pairs, unrolling.rebuild(readings, config.n_query, keep_blocks=pairs), strict=True
    ):
        np.testing.assert_array_equal(kept_QK[..., :n, :n], QK[..., :n, :n])
        assert not kept_QK[..., n:, :].any()
        assert not kept_VP[..., :n, n:].any()
        assert not kept_VP[..., n:, :n].any()
        if regime == "distributed":
            within = np.eye(config.machines, dtype=bool)
            np.testing.assert_array_equal(kept_VP[within, :n, :n], VP[within, :n, :n])
            assert not kept_VP[~within, :n, :n].any()
        else:
            np.testing.assert_array_equal(kept_VP[..., :n, :n], VP[..., :n, :n])


@pytest.mark.parametrize("regime", REGIMES)
def test_eagle_with_the_steps_of_a_single_prompt_is_the_constructed_network(regime):
    _, config = constructed(regime)
    A, B, C, _ = (block[:1].numpy() for block in prompts(config))
    S = sketches() if regime == "rank_limited" else None
    if regime == "distributed":
        parts = np.split(A, 3, axis=-1)
        steps = [constructions.eagle_steps(part, 3) for part in parts]
        steps = [np.stack(values, axis=1) for values in zip(*steps, strict=True)]
        pairs = constructions.eagle_distributed(2, 2, 3, *steps)
    else:
        pairs = constructions.eagle(6, 2, *constructions.eagle_steps(A, 3, sketches=S), S)
    network = unrolling.forward(pairs, A, B, C)
    eagle = unrolling.eagle_states(A, B, C, 3, sketches=S, machines=config.machines)
    np.testing.assert_allclose(unrolling.fidelity(network, eagle), 0, atol=1e-18)


def test_the_step_sizes_are_eta_and_gamma_when_rho_is_the_prompts_own():
    _, config = constructed("unconstrained")
    A, B, C, _ = prompts(config, batch=1)
    pairs = constructions.eagle(6, 2, *constructions.eagle_steps(A.numpy(), 3))
    readings = [unrolling.read_layer(*pair, 6) for pair in pairs]
    eta, gamma = unrolling.step_sizes(readings, unrolling.forward(pairs, A, B, C), config.d)
    np.testing.assert_allclose(eta, 1 / 3, rtol=1e-12)
    np.testing.assert_allclose(gamma, 1, rtol=1e-12)


def test_heads_add_up():
    pairs = constructions.eagle(4, 1, [0.2], [0.6])
    halves = [(np.stack([QK, QK]), np.stack([VP, VP]) / 2) for QK, VP in pairs]
    reading = unrolling.read_layer(*halves[0], 4)
    assert reading.eta_rho == pytest.approx(0.2)
    assert reading.gamma_rho == pytest.approx(0.6)


def test_the_share_off_the_pattern_is_that_of_the_energy():
    W_QK, W_VP = np.diag([1.0, 1, 0]), np.diag([1.0, 1, 2])
    W_QK[0, 2] = 1.0  # a third of the energy, outside the blocks
    W_VP[0, 1] = 2.0  # 4 of 10, inside a block
    reading = unrolling.read_layer(W_QK, W_VP, 2)
    np.testing.assert_allclose(reading.off_pattern, [1 / 3, 0.4])
    np.testing.assert_allclose(reading.off_blocks, [1 / 3, 0.0])


def test_sparsify_keeps_what_exceeds_one_and_a_half_times_the_mean_size():
    W = np.array([1.0, -1.0, 4.0, -4.0])  # mean size 2.5, threshold 3.75
    np.testing.assert_array_equal(unrolling.sparsify(W), [0, 0, 4, -4])
    np.testing.assert_array_equal(W, [1, -1, 4, -4])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), values=st.integers(2, 4), size=st.integers(1, 40))
def test_cluster_uses_at_most_so_many_values_and_keeps_zeros(seed, values, size):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=size) * (rng.random(size) < 0.7)
    found = unrolling.cluster(W, values)
    assert np.unique(np.append(found, 0.0)).size <= values
    assert not found[W == 0].any()
    assert np.abs(found).max() <= np.abs(W).max() + 1e-12


def test_cluster_recovers_separated_values():
    rng = np.random.default_rng(2)
    truth = rng.choice([0.0, -0.3, -1.0], size=(20, 20))
    found = unrolling.cluster(truth + 0.01 * rng.normal(size=truth.shape) * (truth != 0), 3)
    np.testing.assert_allclose(found, truth, atol=0.005)
    with pytest.raises(ValueError, match="at least 2"):
        unrolling.cluster(truth, 1)


def test_quantising_constructed_weights_changes_nothing():
    pairs = constructions.eagle(6, 2, ETA_RHO, GAMMA_RHO)
    for before, after in zip(pairs, unrolling.quantise(pairs), strict=True):
        for W, quantised in zip(before, after, strict=True):
            np.testing.assert_allclose(quantised, W, atol=1e-14)


def test_haar_sketches_pass_for_haar_and_others_do_not():
    n, r = 40, 10
    rng = np.random.default_rng(3)
    haar = [np.linalg.qr(rng.normal(size=(n, r)))[0] for _ in range(2)]
    columns = [np.eye(n)[:, :r]] * 2  # column sampling: SSᵀ is diagonal
    found = {}
    for name, chosen in (("haar", haar), ("columns", columns)):
        pairs = constructions.eagle(n, 2, [0.2] * 2, [0.5] * 2, chosen)
        readings = [unrolling.read_layer(*pair, n, rank=r) for pair in pairs]
        found[name] = unrolling.read_sketches(pairs, readings)
    for sketch in found["haar"]:
        assert sketch.rank == r
        np.testing.assert_allclose(sketch.eigenvalues, [1] * r + [0] * (n - r), atol=1e-12)
        assert sketch.block_difference < 1e-12
        assert min(sketch.p_diagonal, sketch.p_off_diagonal) > 0.01
    assert found["haar"][1].overlap_previous == pytest.approx(r / n, abs=0.1)
    assert found["columns"][1].overlap_previous == pytest.approx(1)
    assert max(found["columns"][0].p_diagonal, found["columns"][0].p_off_diagonal) < 1e-6


def test_unrelated_blocks_differ_by_the_root_of_two():
    W_QK, W_VP = np.diag([1.0, 0, 0]), np.diag([0.0, 1, 1])
    reading = unrolling.read_layer(W_QK, W_VP, 2, rank=1)
    [sketch] = unrolling.read_sketches([(W_QK, W_VP)], [reading])
    assert sketch.block_difference == pytest.approx(np.sqrt(2))


def test_sketches_to_read_and_to_write_are_told_apart():
    rng = np.random.default_rng(4)
    S, U, V = (np.linalg.qr(rng.normal(size=(7, 3)))[0] for _ in range(3))
    W_QK, W_VP = np.zeros((2, 1, 9, 9))
    W_QK[0, :7, :7] = S @ S.T
    W_VP[0, :7, :7], W_VP[0, 7:, 7:] = -0.4 * U @ V.T, -0.9 * np.eye(2)
    reading = unrolling.read_layer(W_QK, W_VP, 7, rank=3)
    later = constructions.eagle(7, 2, [0.2], [0.5], [U])[0]  # reads what the first one takes
    readings = [reading, unrolling.read_layer(*later, 7, rank=3)]
    found = unrolling.read_sketches([(W_QK, W_VP), later], readings)
    assert found[0].written_alpha2 == pytest.approx(-0.4)
    np.testing.assert_allclose(found[0].taken @ found[0].changed.T, U @ V.T, atol=1e-12)
    np.testing.assert_allclose(found[1].taken @ found[1].changed.T, U @ U.T, atol=1e-12)
    assert found[0].overlap_last == pytest.approx(1)
    assert found[0].overlap_taken == pytest.approx(np.linalg.norm(U.T @ S) ** 2 / 3)
    assert found[1].overlap_taken == pytest.approx(1)
    one = unrolling.rebuild(readings, 2)
    two = unrolling.rebuild(readings, 2, sketches=found)
    np.testing.assert_allclose(two[0][1], W_VP, atol=1e-12)
    np.testing.assert_allclose(two[1][1], one[1][1], atol=1e-12)
    assert np.linalg.norm(one[0][1] - W_VP) > 0.1
    with pytest.raises(ValueError, match="pass one"):
        unrolling.rebuild(readings, 2, keep_blocks=two, sketches=found)
    with pytest.raises(ValueError, match="one a layer"):
        unrolling.rebuild(readings, 2, sketches=found[:1])
    W_VP[0, :7, :7] = 0
    [empty] = unrolling.read_sketches([(W_QK, W_VP)], readings[:1])
    assert np.isnan([empty.overlap_taken, empty.overlap_last, empty.block_difference]).all()


@pytest.mark.parametrize("regime", REGIMES)
def test_a_checkpoint_is_unrolled_with_report_and_figures(regime, tmp_path):
    _, shape = constructed(regime)
    training.train(TrainingConfig(model=shape, steps=3, batch=8, rank=3), tmp_path)
    found = unrolling.unroll(tmp_path, prompts=50)
    assert (found.regime, found.step, found.prompts) == (regime, 3, 50)
    assert all(error.shape == (50,) for error in found.errors.values())
    assert found.errors["direct"].mean() < 1e-10
    report = found.report()
    assert f"{regime}, trained for 3 steps" in report
    assert "nan" not in report
    assert ("two sketches" in found.errors) == ("last S" in report) == (regime == "rank_limited")
    figures = found.figures()
    assert set(figures) == {"weights", "steps"} | (
        {"sketches"} if regime == "rank_limited" else set()
    )
    for name, figure in figures.items():
        figure.savefig(tmp_path / f"{name}.png")


def test_an_exact_network_has_no_error_left_to_explain():
    model, config = constructed("unconstrained")
    found = unrolling.unroll(model, config=TrainingConfig(model=config, rank=3), prompts=20)
    np.testing.assert_allclose(found.fidelity_median, 0, atol=1e-18)
    np.testing.assert_allclose(found.errors["network"], found.errors["rebuilt"], rtol=1e-6)


def test_a_network_that_estimates_is_unrolled_like_any_other():
    shape = ModelConfig(d=4, n=6, d_out=2, n_query=4, layers=3)
    config = TrainingConfig(model=shape, rank=2, task="estimation")
    model = LinearTransformer(shape).double()
    factors = constructions.eagle_factors(6, 4, ETA_RHO, GAMMA_RHO)
    set_factors(model, factors)
    found = unrolling.unroll(model, config=config, prompts=20)
    assert found.errors["direct"].max() < 1e-6
    np.testing.assert_allclose(found.fidelity_median, 0, atol=1e-18)


def test_a_network_that_explodes_is_reported_and_not_hidden():
    model, config = constructed("unconstrained")
    with torch.no_grad():
        for layer in model.layers:
            layer.W_P *= -1e80
    found = unrolling.unroll(model, config=TrainingConfig(model=config, rank=3), prompts=20)
    assert np.isinf(found.errors["network"]).all()
    assert "inf" in found.report()
    assert "100.00" in found.report()  # per cent of the prompts


def test_weights_without_a_pattern_are_called_so():
    config = TrainingConfig(model=ModelConfig(), rank=3)
    torch.manual_seed(0)
    assert (
        "leave out nearly all"
        in unrolling.unroll(LinearTransformer(config.model), config=config, prompts=20).report()
    )
    model, shape = constructed("unconstrained")
    found = unrolling.unroll(model, config=TrainingConfig(model=shape, rank=3), prompts=20)
    assert "leave out" not in found.report()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: unrolling.read_layer(np.eye(3), np.eye(4), 2), "of one width"),
        (lambda: unrolling.read_layer(np.eye(3), np.eye(3), 3), "between 1 and 2"),
        (lambda: unrolling.unroll(LinearTransformer(ModelConfig())), "config="),
    ],
)
def test_input_that_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        unrolling.unroll(tmp_path)
