"""The forms of linear attention against sums written out, and against each other."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linear_icl.transformers import attention

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 4)


def prompt(rng, d=3, n=4, d_out=2, n_query=2, batch=()):
    shapes = (d, n), (d_out, n), (d, n_query), (d_out, n_query)
    return [rng.normal(size=(*batch, *shape)) for shape in shapes]


def test_four_matrix_attention_by_hand():
    # One example (x, y) = (2, 3), one query (1, 0): ⟨W_Q e, W_K e_1⟩ = 10·2x and W_V e_1 = (0, 3).
    E = np.array([[2.0, 1.0], [3.0, 0.0]])
    W_Q, W_K, W_V = np.array([[10.0, 0]]), np.array([[1.0, 0]]), np.array([[0.0, 1]])
    W_P = np.array([[0.0], [1.0]])
    added = attention.linear_attention(E, W_Q, W_K, W_V, W_P, examples=1)
    np.testing.assert_array_equal(added, [[0, 0], [120, 60]])


@settings(max_examples=30, deadline=None)
@given(seed=seeds, width=sizes, tokens=sizes, heads=sizes, key=sizes, value=sizes)
def test_column_attention_is_the_double_sum_over_heads_and_examples(
    seed, width, tokens, heads, key, value
):
    rng = np.random.default_rng(seed)
    E = rng.normal(size=(width, tokens + 1))
    W_Q, W_K = rng.normal(size=(2, heads, key, width))
    W_V, W_P = rng.normal(size=(heads, value, width)), rng.normal(size=(heads, width, value))
    expected = np.zeros_like(E)
    for i in range(tokens + 1):
        for h in range(heads):
            for j in range(tokens):
                score = (W_Q[h] @ E[:, i]) @ (W_K[h] @ E[:, j])
                expected[:, i] += W_P[h] @ (score * (W_V[h] @ E[:, j]))
    four = attention.linear_attention(E, W_Q, W_K, W_V, W_P, examples=tokens)
    np.testing.assert_allclose(four, expected, atol=1e-10)
    Q, P = attention.merge(W_Q, W_K, W_V, W_P)
    merged = attention.merged_attention(E, Q, P, examples=tokens)
    np.testing.assert_allclose(merged, expected, atol=1e-10)
    as_list = attention.merged_attention(E, list(Q), list(P), examples=tokens)
    np.testing.assert_array_equal(as_list, merged)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, rows=st.integers(2, 5), width=sizes, heads=sizes, key=sizes, value=sizes)
def test_row_attention_lets_only_the_first_d_rows_act_as_keys(seed, rows, width, heads, key, value):
    rng = np.random.default_rng(seed)
    d = rows - 1
    Z = rng.normal(size=(rows, width))
    W_Q, W_K = rng.normal(size=(2, heads, width, key))
    W_V, W_P = rng.normal(size=(2, heads, width, value))
    expected = np.zeros_like(Z)
    for h in range(heads):
        for i in range(rows):
            for j in range(d):
                score = (Z[i] @ W_Q[h]) @ (Z[j] @ W_K[h])
                expected[i] += score * (Z[j] @ W_V[h] @ W_P[h].T)
    np.testing.assert_allclose(
        attention.row_attention(Z, W_Q, W_K, W_V, W_P, d), expected, atol=1e-10
    )
    merged = attention.merged_row_attention(Z, *attention.merge_rows(W_Q, W_K, W_V, W_P), d)
    np.testing.assert_allclose(merged, expected, atol=1e-10)


def test_attending_to_all_columns_is_the_default():
    rng = np.random.default_rng(0)
    E, Q, P = rng.normal(size=(3, 4)), rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    np.testing.assert_array_equal(
        attention.merged_attention(E, Q, P), attention.merged_attention(E, Q, P, examples=4)
    )


def test_the_query_changes_no_example_in_a_column_layer():
    rng = np.random.default_rng(1)
    A, B, C, D = prompt(rng)
    Q, P = rng.normal(size=(2, 5, 5))
    with_query = attention.column_layer(A, B, C, D, Q, P)
    other = attention.column_layer(A, B, 10 * C, D + 1, Q, P)
    np.testing.assert_array_equal(with_query[0], other[0])
    np.testing.assert_array_equal(with_query[1], other[1])


def test_the_labels_change_no_feature_in_a_row_layer():
    rng = np.random.default_rng(2)
    A, B, C, D = prompt(rng)
    W_QK, W_VP = rng.normal(size=(2, 6, 6))
    with_labels = attention.row_layer(A, B, C, D, W_QK, W_VP)
    other = attention.row_layer(A, 10 * B, C, D + 1, W_QK, W_VP)
    np.testing.assert_array_equal(with_labels[0], other[0])
    np.testing.assert_array_equal(with_labels[2], other[2])


def test_a_stack_is_its_layers_one_after_the_other():
    rng = np.random.default_rng(3)
    A, B, C, D = prompt(rng)
    for stack, layer, width in (
        (attention.column_stack, attention.column_layer, 5),
        (attention.row_stack, attention.row_layer, 6),
    ):
        pairs = [tuple(0.1 * rng.normal(size=(2, 2, width, width))) for _ in range(3)]
        blocks = (A, B, C, D)
        for pair, expected in zip(pairs, stack(A, B, C, pairs, D=D)[1:], strict=True):
            blocks = layer(*blocks, *pair)
            for one, other in zip(blocks, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_one_head_a_machine_is_row_attention_with_block_weights():
    rng = np.random.default_rng(4)
    M, d, rows, width = 3, 4, 6, 5
    X = rng.normal(size=(2, M, rows, width))
    W_QK, W_VP = rng.normal(size=(M, width, width)), rng.normal(size=(M, M, width, width))
    big_QK, big_VP = np.zeros((2, M, M * width, M * width))
    for mu in range(M):
        own = slice(mu * width, (mu + 1) * width)
        big_QK[mu, own, own] = W_QK[mu]
        big_VP[mu, own] = np.hstack(list(W_VP[mu]))
    Z = np.concatenate(list(X.swapaxes(0, 1)), axis=-1)
    expected = attention.merged_row_attention(Z, big_QK, big_VP, d)
    found = attention.distributed_attention(X, W_QK, W_VP, d)
    np.testing.assert_allclose(np.concatenate(list(found.swapaxes(0, 1)), axis=-1), expected)


@pytest.mark.parametrize("stack", [attention.column_stack, attention.row_stack])
def test_a_batch_is_its_members_and_torch_agrees_with_numpy(stack):
    rng = np.random.default_rng(5)
    A, B, C, _ = prompt(rng, batch=(2, 3))
    width = 5 if stack is attention.column_stack else 6
    pairs = [tuple(0.1 * rng.normal(size=(2, width, width))) for _ in range(2)]
    states = stack(A, B, C, pairs)
    alone = stack(A[1, 2], B[1, 2], C[1, 2], pairs)
    tensors = stack(
        *map(torch.from_numpy, (A, B, C)), [tuple(map(torch.from_numpy, p)) for p in pairs]
    )
    for batched, single, tensor in zip(states, alone, tensors, strict=True):
        for x, y, t in zip(batched, single, tensor, strict=True):
            np.testing.assert_allclose(x[1, 2], y, atol=1e-13)
            np.testing.assert_allclose(t.numpy(), x, atol=1e-13)


def test_gradients_flow_through_every_form():
    rng = np.random.default_rng(6)
    E = torch.tensor(rng.normal(size=(3, 3)), requires_grad=True)
    weights = [torch.tensor(rng.normal(size=(3, 3)), requires_grad=True) for _ in range(4)]
    total = attention.linear_attention(E, *weights).sum()
    total = total + attention.row_attention(E, *weights, d=2).sum()
    total.backward()
    assert all(bool(torch.isfinite(a.grad).all()) for a in (E, *weights))


def test_read_out_turns_the_sign_of_the_last_block():
    D = np.array([[1.0, -2.0]])
    np.testing.assert_array_equal(attention.read_out((D, D, D, D)), -D)


def test_the_module_imports_without_torch():
    code = (
        "import sys; import linear_icl.transformers.attention, "
        "linear_icl.transformers.constructions, linear_icl.transformers.implicit_weights; "
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr


E, I3 = np.ones((3, 4)), np.eye(3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: attention.merged_attention(E, np.eye(4), I3), "Q must have 3 rows"),
        (lambda: attention.merged_attention(E, I3, I3, examples=5), "between 0 and 4"),
        (lambda: attention.merged_attention(E, I3, I3, examples=True), "whole number"),
        (lambda: attention.merged_attention(E, [I3, I3], I3), "number of heads"),
        (lambda: attention.merged_attention(np.ones(3), I3, I3), "matrix of tokens"),
        (lambda: attention.linear_attention(E, I3, np.eye(2), I3, I3), "W_K must have 3 columns"),
        (lambda: attention.row_attention(E, *[np.eye(4)] * 4, d=0), "from 1 to 3 rows"),
        (lambda: attention.row_attention(E, *[I3] * 4, d=1), "W_Q must have 4 rows"),
        (lambda: attention.column_layer(E, E, E, E[:2], I3, I3), "D must have shape"),
        (lambda: attention.column_layer(E, E[0], E, E, I3, I3), "B and C must have shapes"),
        (lambda: attention.row_stack(E, E[:, :3], E, []), "one column an example"),
        (lambda: attention.distributed_attention(E, I3, I3, 1), "X must have shape"),
        (lambda: attention.distributed_stack([], E, []), "at least one"),
    ],
)
def test_input_that_does_not_fit_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_numpy_weights_with_torch_tokens_are_refused():
    with pytest.raises(TypeError, match="both as tensors"):
        attention.merged_attention(torch.ones(3, 4), I3, I3)
