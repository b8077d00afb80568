"""The recursion for (M, u, w, a) against a forward pass, and against closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linear_icl.transformers import attention, constructions
from linear_icl.transformers.implicit_weights import implicit_weights, layer_blocks


def full_layers(rng, d, heads, depth):
    size = (heads, d + 1, d + 1)
    return [(0.2 * rng.normal(size=size), 0.2 * rng.normal(size=size)) for _ in range(depth)]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 5),
    n=st.integers(1, 7),
    heads=st.integers(1, 3),
    depth=st.integers(0, 4),
)
def test_every_layer_is_linear_in_the_input_pair_for_full_random_weights(seed, d, n, heads, depth):
    rng = np.random.default_rng(seed)
    A, y, C = rng.normal(size=(d, n)), rng.normal(size=n), rng.normal(size=(d, 2))
    A, y = A / np.sqrt(n * d), y / np.sqrt(n)
    layers = full_layers(rng, d, heads, depth)
    forward = attention.column_stack(A, y[None], C, layers)
    recursion = implicit_weights(A, y, layers)
    assert len(recursion) == depth + 1
    for (A_l, B_l, C_l, D_l), (M, u, w, a) in zip(forward, recursion, strict=True):
        np.testing.assert_allclose(A_l, M @ A + np.outer(u, y), rtol=0, atol=1e-10)
        np.testing.assert_allclose(B_l[0], a * y - w @ A, rtol=0, atol=1e-10)
        np.testing.assert_allclose(C_l, M @ C, rtol=0, atol=1e-10)
        np.testing.assert_allclose(D_l[0], -w @ C, rtol=0, atol=1e-10)


def test_a_batch_of_torch_prompts_gives_what_each_prompt_gives_alone():
    rng = np.random.default_rng(1)
    A, y = rng.normal(size=(3, 4, 6)), rng.normal(size=(3, 6))
    layers = full_layers(rng, 4, 2, 3)
    tensors = [tuple(map(torch.from_numpy, pair)) for pair in layers]
    together = implicit_weights(torch.from_numpy(A), torch.from_numpy(y), tensors)
    assert isinstance(together[-1].M, torch.Tensor)
    for member in range(3):
        alone = implicit_weights(A[member], y[member], layers)
        for both in zip(together, alone, strict=True):
            for batched, single in zip(*both, strict=True):
                np.testing.assert_allclose(batched[member].numpy(), single, rtol=1e-9, atol=1e-9)


def test_diagonal_weights_give_the_blocks_of_the_theorem():
    rng = np.random.default_rng(2)
    A, y = rng.normal(size=(3, 5)), rng.normal(size=5)
    E = np.vstack([A, y])
    [(Q, P)] = constructions.diagonal(3, 1, [(0.1, 0.2, 0.3, 0.4)])
    script_a, b, c, delta = layer_blocks(E @ E.T, Q, P)
    np.testing.assert_allclose(script_a, 0.1 * A @ A.T)
    np.testing.assert_allclose(b, 0.2 * A @ y)
    np.testing.assert_allclose(c, 0.3 * A @ y)
    np.testing.assert_allclose(delta, 0.4 * y @ y)


def test_gradient_descent_keeps_the_features_and_descends_in_w():
    rng = np.random.default_rng(3)
    A, y = rng.normal(size=(3, 5)), rng.normal(size=5)
    w = np.zeros(3)
    layers = constructions.gradient_descent(3, 1, [0.05, 0.02, 0.1])
    states = implicit_weights(A, y, layers)
    for state, step in zip(states[1:], [0.05, 0.02, 0.1], strict=True):
        w = w + step * (y - w @ A) @ A.T
        np.testing.assert_allclose(state.w, w, rtol=1e-12)
        np.testing.assert_allclose(state.M, np.eye(3))
        np.testing.assert_allclose(state.u, 0)
        np.testing.assert_allclose(state.a, 1)


def test_the_recursion_is_differentiable_in_torch():
    A = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    layers = [
        tuple(map(torch.from_numpy, pair))
        for pair in constructions.gradient_descent(3, 1, [0.1, 0.1])
    ]
    implicit_weights(A, torch.ones(5, dtype=torch.float64), layers)[-1].w.sum().backward()
    assert torch.isfinite(A.grad).all()


@pytest.mark.parametrize(
    ("A", "y", "width", "words"),
    [
        (np.ones((2, 3)), np.ones(4), 3, "one column an example"),
        (np.ones((2, 3)), np.ones(3), 4, "Q must have 3 rows"),
        (np.ones(3), np.ones(3), 3, "A must have shape"),
    ],
)
def test_input_that_does_not_fit_is_refused_by_name(A, y, width, words):
    with pytest.raises(ValueError, match=words):
        implicit_weights(A, y, [(np.eye(width), np.eye(width))])
