"""Small transformers with other scores, against the readable stack and by their symmetry."""

import numpy as np
import pytest
import torch

from linear_icl.transformers import attention, constructions
from linear_icl.transformers.score_attention import (
    FUNCTIONS,
    PatternTransformer,
    ScoreTransformer,
    train_scores,
)


def prompts(batch, generator):
    left = torch.randn(batch, 6, 3, generator=generator, dtype=torch.float64)
    X = left @ torch.randn(batch, 3, 7, generator=generator, dtype=torch.float64) / 2
    return X[:, :4, :5], X[:, 4:, :5], X[:, :4, 5:], X[:, 4:, 5:]


def drawn(seed=0, batch=6):
    return prompts(batch, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("heads", [1, 3])
def test_linear_scores_are_the_row_stack_of_the_merged_weights(heads):
    model = ScoreTransformer(n=5, n_query=2, layers=3, heads=heads, scale=0.3).double()
    A, B, C, _ = drawn()
    W_QK, W_VP = (W.detach().numpy() for W in model.merged())
    pairs = list(zip(W_QK, W_VP, strict=True))
    expected = attention.row_stack(A.numpy(), B.numpy(), C.numpy(), pairs)[-1][3]
    np.testing.assert_allclose(model(A, B, C).detach().numpy(), -expected, atol=1e-12)


def test_the_pattern_is_the_construction_of_eagle():
    model = PatternTransformer(n=5, n_query=2, layers=2).double()
    model.steps.data = torch.tensor([[0.1, 0.2], [0.3, 0.5]], dtype=torch.float64)
    A, B, C, _ = drawn()
    pairs = constructions.eagle(5, 2, eta_rho=[0.1, 0.3], gamma_rho=[0.2, 0.5])
    expected = attention.row_stack(A.numpy(), B.numpy(), C.numpy(), pairs)[-1][3]
    np.testing.assert_allclose(model(A, B, C).detach().numpy(), -expected, atol=1e-12)


@pytest.mark.parametrize("scores", FUNCTIONS)
def test_rotated_weights_do_to_rotated_columns_what_the_weights_did(scores):
    model = ScoreTransformer(n=5, n_query=2, layers=2, scores=scores, scale=0.4).double()
    A, B, C, _ = drawn()
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))[0]
    exchange = torch.eye(2, dtype=torch.float64).flip(0)
    R = torch.block_diag(rotation, exchange)
    before = model(A, B, C)
    with torch.no_grad():
        model.factors.copy_(R.mT @ model.factors)
    torch.testing.assert_close(model(A @ rotation, B @ rotation, C @ exchange), before @ exchange)


def test_two_relu_heads_of_opposite_sign_are_linear_attention():
    linear = ScoreTransformer(n=5, n_query=2, layers=2, scale=0.4).double()
    relu = ScoreTransformer(n=5, n_query=2, layers=2, heads=2, scores="relu").double()
    signs = torch.tensor([1.0, -1.0]).double()[:, None, None]
    with torch.no_grad():
        relu.factors.copy_(linear.factors.expand(-1, -1, 2, -1, -1))
        relu.factors[0] *= signs
        relu.factors[2] *= signs
    A, B, C, _ = drawn()
    torch.testing.assert_close(relu(A, B, C), linear(A, B, C))


@pytest.mark.parametrize("scores", FUNCTIONS)
def test_training_lowers_the_error_and_a_seed_gives_the_same_run(scores):
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        model = ScoreTransformer(n=5, n_query=2, layers=2, scores=scores, scale=0.3).double()
        ends.append(train_scores(model, prompts, steps=150, batch=64, learning_rate=1e-2))
    assert np.mean(ends[0][-20:]) < 0.9 * np.mean(ends[0][:20])
    assert ends[0] == ends[1]


def test_scores_of_another_name_are_refused():
    with pytest.raises(ValueError, match="scores must be one of linear, relu, softmax"):
        ScoreTransformer(n=5, n_query=2, layers=2, scores="tanh")
