"""The trainable model against the readable attention functions, in every regime."""

import numpy as np
import pytest
import torch

from linear_icl.transformers import attention
from linear_icl.transformers.model import LinearTransformer, ModelConfig

CONFIGS = {
    "unconstrained": ModelConfig(d=4, n=6, d_out=2, n_query=3, layers=3),
    "two heads": ModelConfig(d=4, n=6, d_out=1, n_query=2, layers=2, heads=2),
    "rank_limited": ModelConfig("rank_limited", d=5, n=6, d_out=2, n_query=2, layers=3, rank=2),
    "rank_limited heads": ModelConfig("rank_limited", d=3, n=4, layers=2, heads=3, rank=1),
    "distributed": ModelConfig("distributed", d=4, n=6, d_out=2, n_query=2, layers=2, machines=3),
}


def prompts(config, batch=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (config.d, config.n), (config.d_out, config.n), (config.d, config.n_query)
    return [
        torch.randn(batch, *shape, generator=generator, dtype=torch.float64) for shape in shapes
    ]


def model_of(config):
    torch.manual_seed(0)
    return LinearTransformer(config, scale=0.3).double()


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "distributed"])
def test_a_layer_is_row_attention_with_its_four_matrices(name):
    config = CONFIGS[name]
    model = model_of(config)
    A, B, C = prompts(config)
    Z = model.states(A, B, C)
    for layer, before, after in zip(model.layers, Z, Z[1:], strict=False):
        weights = layer.W_Q, layer.W_K, layer.W_V, layer.W_P
        added = attention.row_attention(before, *weights, config.d)
        torch.testing.assert_close(after, before + added)


def test_a_distributed_layer_is_row_attention_on_all_blocks_with_one_head_a_machine():
    config = CONFIGS["distributed"]
    model = model_of(config)
    A, B, C = prompts(config)
    Z = model.states(A, B, C)
    M, width = config.machines, config.columns
    for layer, before, after in zip(model.layers, Z, Z[1:], strict=False):
        heads = []
        for mu in range(M):
            own = slice(mu * width, (mu + 1) * width)
            head = [torch.zeros(M * width, width, dtype=torch.float64) for _ in range(3)]
            for W, shared in zip(head, (layer.W_Q, layer.W_K, layer.W_V), strict=True):
                W[own] = shared[0]
            heads.append((*head, layer.W_P[mu]))
        weights = [torch.stack(parts) for parts in zip(*heads, strict=True)]
        expected = before + attention.row_attention(before, *weights, config.d)
        torch.testing.assert_close(after, expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_prediction_has_the_shape_of_d_and_is_minus_the_mean_copy(name):
    config = CONFIGS[name]
    model = model_of(config)
    A, B, C = prompts(config)
    D = model(A, B, C)
    assert D.shape == (5, config.d_out, config.n_query)
    last = model.states(A, B, C)[-1][:, config.d :].unflatten(-1, (config.machines, -1))
    torch.testing.assert_close(D, -last[..., -config.n_query :].mean(dim=-2))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_weight_gets_a_gradient(name):
    config = CONFIGS[name]
    model = model_of(config)
    model(*prompts(config)).square().sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in model.parameters())


def test_the_tokens_hold_the_blocks_of_every_machine_and_a_copy_of_the_query():
    config = CONFIGS["distributed"]
    A, B, C = prompts(config)
    Z = model_of(config).tokens(A, B, C)
    assert Z.shape == (5, 6, 3 * 4)
    for mu in range(3):
        X = Z[:, :, 4 * mu : 4 * mu + 4]
        torch.testing.assert_close(X[:, :4, :2], A[:, :, 2 * mu : 2 * mu + 2])
        torch.testing.assert_close(X[:, 4:, :2], B[:, :, 2 * mu : 2 * mu + 2])
        torch.testing.assert_close(X[:, :4, 2:], C)
        assert not X[:, 4:, 2:].any()


def test_blocks_of_another_shape_are_refused():
    model = model_of(CONFIGS["unconstrained"])
    with pytest.raises(ValueError, match="A, B, C must have the shapes"):
        model(torch.ones(2, 4, 5), torch.ones(2, 2, 5), torch.ones(2, 4, 3))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_rotation_of_the_feature_rows_changes_nothing_and_zero_rows_may_be_left_out(name):
    model = model_of(CONFIGS[name])
    A, B, C = prompts(CONFIGS[name])
    A[:, -1], C[:, -1] = 0, 0
    Q = torch.linalg.qr(torch.randn(A.shape[1], A.shape[1], dtype=torch.float64))[0]
    torch.testing.assert_close(model(Q @ A, B, Q @ C), model(A, B, C))
    torch.testing.assert_close(model(A[:, :-1], B, C[:, :-1]), model(A, B, C))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"regime": "quantum"}, "regime must be one of"),
        ({"layers": 0}, "layers must be a whole number"),
        ({"d": 2.5}, "d must be a whole number"),
        ({"heads": True}, "heads must be a whole number"),
        ({"regime": "rank_limited"}, "rank goes with"),
        ({"rank": 3}, "rank goes with"),
        ({"regime": "rank_limited", "rank": 19}, r"rank must lie in \[1, n = 18\]"),
        ({"machines": 2}, "machines goes with"),
        ({"regime": "distributed", "machines": 4}, "machines dividing n = 18"),
        ({"regime": "distributed", "machines": 3, "heads": 2}, "heads = 1"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        ModelConfig(**arguments)


def test_the_initial_weights_have_the_scale_asked_for():
    torch.manual_seed(0)
    model = LinearTransformer(ModelConfig(), scale=0.1)
    entries = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    assert entries.std() == pytest.approx(0.1, rel=0.05)
