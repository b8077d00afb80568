"""Problems: sizes, ranks, condition numbers and answers are what was asked for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from linear_icl import files, problems, theory

DRAWN = problems.DRAWN_SPECTRA
CONSTRUCTED = problems.CONSTRUCTED_SPECTRA


def arrays(problem):
    values = (getattr(problem, f.name) for f in dataclasses.fields(problem))
    return [value for value in values if isinstance(value, np.ndarray) and value.ndim > 1]


def pinv(A):
    return np.linalg.pinv(A, rcond=1e-11)


@settings(max_examples=60, deadline=None)
@given(
    d=st.integers(1, 12),
    n=st.integers(1, 12),
    d_out=st.integers(1, 3),
    n_query=st.integers(1, 3),
    log_kappa=st.floats(0.1, 8),
    rank_from_full=st.integers(0, 11),
    spectrum=st.sampled_from((*CONSTRUCTED, "gaussian", "student-t", "correlated")),
    batch=st.sampled_from([(), (1,), (2, 3)]),
    seed=st.integers(0, 1000),
)
def test_rank_and_condition_number_are_exactly_those_asked_for(
    d, n, d_out, n_query, log_kappa, rank_from_full, spectrum, batch, seed
):
    rank = max(1, min(d, n) - rank_from_full)
    kappa = 10**log_kappa if rank > 1 else 1.0
    problem = problems.completion(
        d, n, d_out, n_query, kappa=kappa, rank=rank, spectrum=spectrum, batch=batch, rng=seed
    )
    assert problem.A.shape == (*batch, d, n)
    assert problem.B.shape == (*batch, d_out, n)
    assert problem.C.shape == (*batch, d, n_query)
    assert problem.D.shape == (*batch, d_out, n_query)
    assert problem.W_star.shape == (*batch, d_out, d)
    sigma = np.linalg.svd(problem.A, compute_uv=False)
    assert sigma[..., 0] / sigma[..., rank - 1] == pytest.approx(np.full(batch, kappa), rel=1e-6)
    assert (sigma[..., rank:] <= 1e-14 * sigma[..., :1]).all()
    assert np.shape(problem.kappa) == batch
    assert problem.kappa == pytest.approx(np.full(batch, kappa), rel=1e-9)
    # Consistent: B = W A, C in the range of A, D = B A⁺ C.
    assert np.allclose(problem.W_star @ problem.A, problem.B, atol=1e-12 * np.max(sigma))
    projected = problem.A @ (pinv(problem.A) @ problem.C)
    assert np.allclose(projected, problem.C, rtol=1e-5, atol=1e-5)
    assert np.allclose(problem.D, problem.W_star @ problem.C)


@pytest.mark.parametrize("spectrum", problems.SPECTRA)
def test_the_answer_is_the_nystrom_one(spectrum):
    problem = problems.completion(15, 20, spectrum=spectrum, s=None, rng=4)
    assert np.array_equal(problem.D, problem.D_star) or spectrum == "low-rank"
    assert problem.error(problem.D) < 1e-10
    assert problem.error(problem.B @ pinv(problem.A) @ problem.C) < 1e-8
    assert np.allclose(problem.W_star, problem.B @ pinv(problem.A), atol=1e-8)
    assert problem.meta["source"] == spectrum
    assert problem.kappa == pytest.approx(theory.condition_number(problem.A), rel=1e-8)


def test_no_example_is_dropped():
    # n in, n used: without any one column the answer of the noisy problem changes.
    problem = problems.completion(3, 5, spectrum="gaussian", noise=0.5, rng=0)
    assert problem.A.shape[1] == problem.B.shape[1] == 5
    whole = problem.B @ pinv(problem.A)
    for i in range(5):
        rest = np.delete(np.arange(5), i)
        assert not np.allclose(problem.B[:, rest] @ pinv(problem.A[:, rest]), whole)


@pytest.mark.parametrize("spectrum", problems.SPECTRA)
def test_the_seed_decides_everything_and_the_global_state_nothing(spectrum):
    np.random.seed(1)  # noqa: NPY002
    first = problems.completion(6, 7, spectrum=spectrum, noise=0.1, rng=3)
    np.random.seed(2)  # noqa: NPY002
    again = problems.completion(6, 7, spectrum=spectrum, noise=0.1, rng=np.random.default_rng(3))
    other = problems.completion(6, 7, spectrum=spectrum, noise=0.1, rng=4)
    for a, b, c in zip(arrays(first), arrays(again), arrays(other), strict=True):
        assert np.array_equal(a, b)
        assert not np.array_equal(a, c)


@pytest.mark.parametrize("spectrum", problems.SPECTRA)
@pytest.mark.parametrize("dtype", ["float32", np.float64])
def test_every_array_has_the_dtype_asked_for(spectrum, dtype):
    kappa = None if spectrum == "low-rank" else 1e3
    problem = problems.completion(
        6, 7, kappa=kappa, spectrum=spectrum, noise=0.1, batch=2, dtype=dtype
    )
    assert {a.dtype for a in arrays(problem)} == {np.dtype(dtype)}
    assert {a.shape[0] for a in arrays(problem)} == {2}
    assert {a.dtype for a in arrays(problems.regression(3, 4, dtype=dtype))} == {np.dtype(dtype)}


def test_members_of_a_batch_differ():
    A = problems.completion(4, 4, batch=(2, 2), rng=0).A.reshape(4, 4, 4)
    assert len({tuple(member.ravel()) for member in A}) == 4


def test_log_spaced_singular_values_are_a_geometric_sequence():
    A = problems.completion(5, 9, kappa=1e4, spectrum="log-spaced").A
    sigma = np.linalg.svd(A, compute_uv=False)
    assert sigma == pytest.approx([1, 0.1, 0.01, 1e-3, 1e-4], rel=1e-9)


def test_clustered_singular_values_come_in_five_narrow_groups():
    A = problems.completion(50, 60, kappa=1e4, spectrum="clustered").A
    log_sigma = np.log(np.linalg.svd(A, compute_uv=False))
    gaps = -np.diff(log_sigma)
    assert (gaps > 1).sum() == 4
    groups = np.split(log_sigma, np.flatnonzero(gaps > 1) + 1)
    assert [len(group) for group in groups] == [10] * 5
    assert all(np.ptp(group) <= np.log(1.01) + 1e-9 for group in groups)


def test_log_uniform_singular_values_are_uniform_in_the_exponent():
    A = problems.completion(200, 200, kappa=1e4, batch=2, rng=5).A
    exponents = -np.log10(np.linalg.svd(A, compute_uv=False)).ravel() / 4
    assert scipy.stats.kstest(exponents, "uniform").pvalue > 0.01


def test_orthogonal_factors_are_haar():
    # The first entry of a Haar vector in R^8 has (entry² ~ Beta(1/2, 7/2)) and either sign.
    Q = problems._orthonormal((2000,), 8, 3, np.random.default_rng(0))
    assert np.allclose(np.swapaxes(Q, 1, 2) @ Q, np.eye(3))
    assert scipy.stats.kstest(Q[:, 0, 0] ** 2, scipy.stats.beta(0.5, 3.5).cdf).pvalue > 0.01
    assert abs((Q[:, 0, 0] > 0).mean() - 0.5) < 0.05


def test_drawn_matrices_have_the_distribution_they_are_named_after():
    A = {name: problems.completion(60, 900, spectrum=name, rng=7).A for name in DRAWN}
    assert scipy.stats.kstest(A["gaussian"].ravel(), "norm").pvalue > 0.01
    assert scipy.stats.kstest(A["student-t"].ravel(), scipy.stats.t(4).cdf).pvalue > 0.01
    assert set(np.unique(A["sparse-rademacher"])) == {-1 / np.sqrt(0.1), 0.0, 1 / np.sqrt(0.1)}
    assert (A["sparse-rademacher"] != 0).mean() == pytest.approx(0.1, abs=0.01)
    covariance = A["correlated"] @ A["correlated"].T / 900
    assert np.diagonal(covariance, 1).mean() == pytest.approx(0.8, abs=0.05)
    assert np.diagonal(covariance, 3).mean() == pytest.approx(0.8**3, abs=0.05)


def test_a_drawn_spectrum_is_stretched_monotonically_and_keeps_its_largest_value():
    drawn = problems.completion(8, 10, spectrum="gaussian", rng=1)
    stretched = problems.completion(8, 10, spectrum="gaussian", kappa=1e5, rng=1)
    before, after = (np.linalg.svd(p.A, compute_uv=False) for p in (drawn, stretched))
    assert after[0] == pytest.approx(before[0])
    t = np.log(after[1:] / after[0]) / np.log(before[1:] / before[0])
    assert t == pytest.approx(np.full(7, t[0]))


def test_noise_has_the_variance_asked_for_and_leaves_the_answer_alone():
    clean = problems.completion(20, 4000, spectrum="gaussian", rng=2)
    noisy = problems.completion(20, 4000, spectrum="gaussian", noise=0.25, rng=2)
    difference = noisy.B - clean.B
    assert difference.var() == pytest.approx(0.25, rel=0.05)
    assert np.array_equal(noisy.D_star, clean.D_star)
    assert np.array_equal(noisy.A, clean.A)


def test_the_low_rank_prompt_is_the_training_distribution():
    problem = problems.completion(18, 18, spectrum="low-rank", batch=3000, rng=0)
    X = problems.prompt_matrix(problem.A, problem.B, problem.C, problem.D)
    assert X.shape == (3000, 20, 20)
    sigma = np.linalg.svd(X[:50], compute_uv=False)
    assert (sigma[:, 10:] < 1e-12).all()
    assert (sigma[:, 9] > 1e-6).all()
    # E X_ij² = Σ α^(2i) / s, by hand for α = 0.7, s = 10.
    expected = sum(0.7 ** (2 * i) for i in range(1, 11)) / 10
    assert (X**2).mean() == pytest.approx(expected, rel=0.05)
    assert np.allclose(problem.D, problem.D_star, atol=1e-8)


def test_noise_on_a_low_rank_prompt_lies_on_every_block():
    clean = problems.completion(18, 18, spectrum="low-rank", batch=200, rng=0)
    noisy = problems.completion(18, 18, spectrum="low-rank", noise=0.01, batch=200, rng=0)
    for name in "ABCD":
        difference = getattr(noisy, name) - getattr(clean, name)
        assert difference.var() == pytest.approx(0.01, rel=0.15)
    assert np.array_equal(noisy.D_star, clean.D_star)
    assert noisy.kappa == pytest.approx(theory.condition_number(noisy.A))


def test_a_fast_decay_does_not_blow_up_the_low_rank_answer():
    problem = problems.completion(18, 18, spectrum="low-rank", s=18, alpha=0.05, rng=0)
    assert np.isfinite(problem.D_star).all()
    assert np.allclose(problem.D_star, problem.D, atol=1e-6)


def test_error_is_relative_and_one_number_a_member():
    problem = problems.completion(4, 4, batch=3)
    assert problem.error(problem.D_star) == pytest.approx([0, 0, 0])
    assert problem.error(torch.from_numpy(1.5 * problem.D_star)) == pytest.approx([0.5] * 3)
    with pytest.raises(ValueError, match=r"\(3, 2, 2\)"):
        problem.error(problem.D_star[0])
    with pytest.raises(ValueError, match="unknown"):
        dataclasses.replace(problem, D_star=None).error(problem.D_star)


@pytest.mark.parametrize(("d", "n"), [(4, 9), (9, 4)])
def test_regression_prompts_are_linear_with_noise_of_the_right_size(d, n):
    problem = problems.regression(d, n, 3, noise=0.04, batch=(2000,), rng=0)
    assert problem.A.shape == (2000, d, n)
    assert problem.C.shape == (2000, d, 3)
    assert problem.y.shape == (2000, n)
    assert problem.w.shape == (2000, d)
    residual = problem.B - problem.W_true @ problem.A
    assert residual.std() == pytest.approx(0.2, rel=0.05)
    assert problem.sigma == pytest.approx(np.full(2000, 0.2))
    assert np.allclose(problem.D, problem.W_true @ problem.C)
    assert problem.W_true.std() == pytest.approx(1, rel=0.05)
    assert problem.X.shape == (2000, d + 1, n + 3)
    assert (problem.X[:, d:, n:] == 0).all()


def test_every_regression_task_can_have_its_own_noise():
    variance = np.array([0.0, 100.0])
    problem = problems.regression(3, 2000, noise=variance, batch=2, rng=0)
    residual = problem.B - problem.W_true @ problem.A
    assert residual.std(axis=(1, 2)) == pytest.approx([0, 10], rel=0.05)


@pytest.mark.parametrize(("d", "n"), [(4, 9), (9, 4)])
def test_a_regression_design_hits_kappa_and_keeps_queries_alike(d, n):
    problem = problems.regression(d, n, 5, kappa=300.0, batch=2, rng=1)
    assert theory.condition_number(problem.A) == pytest.approx([300, 300])
    drawn = problems.regression(d, n, 5, batch=2, rng=1)
    largest = [np.linalg.norm(a, 2, axis=(1, 2)) for a in (problem.A, drawn.A)]
    assert largest[0] == pytest.approx(largest[1])
    if d < n:
        # One map T of feature space for both: A = T A₀ and C = T C₀.
        T = problem.A @ np.linalg.pinv(drawn.A)
        assert np.allclose(T @ drawn.C, problem.C)


def test_uniform_features_stay_in_their_interval():
    A = problems.regression(10, 500, x="uniform").A
    assert scipy.stats.kstest(A.ravel(), scipy.stats.uniform(-1, 2).cdf).pvalue > 0.01


def test_digit_kernels_are_true_kernel_values():
    problem = problems.digits_kernel(60, 30, 20, rng=1)
    assert problem.A.shape == (60, 60)
    assert problem.B.shape == (20, 60)
    assert problem.C.shape == (60, 30)
    assert problem.D.shape == (20, 30)
    assert np.array_equal(problem.A, problem.A.T)
    assert (np.diagonal(problem.A) == 1).all()
    assert (problem.D > 0).all()
    assert (problem.D < 1).all()
    assert np.median(problem.A[np.triu_indices(60, 1)]) == pytest.approx(np.exp(-0.5))
    assert problem.kappa == pytest.approx(np.linalg.cond(problem.A))
    assert 0 < np.linalg.norm(problem.D_star - problem.D) < 0.03 * np.linalg.norm(problem.D)


@settings(max_examples=60, deadline=None)
@given(
    machines=st.integers(1, 6),
    share=st.floats(0.0, 1.0),
    d=st.integers(6, 30),
    extra=st.integers(0, 20),
    log_kappa=st.floats(0.0, 4.0),
    seed=st.integers(0, 1000),
)
def test_distributed_prompts_have_the_diversity_index_and_condition_number_asked_for(
    machines, share, d, extra, log_kappa, seed
):
    # α log-uniform from 1e-4 to the largest below 1.
    alpha = 1.0 if machines == 1 else 1e-4 * (1e4 * (1 - 1 / machines)) ** share
    n = machines * d + extra
    kappa = 10**log_kappa if d >= 2 * machines else 1.0
    problem = problems.distributed(
        d, n, 2, 3, machines=machines, alpha=alpha, kappa=kappa, rng=seed
    )
    assert [A.shape for A, _ in problem.parts] == [(d, size) for size in problem.sizes]
    assert sum(problem.sizes) == n
    assert max(problem.sizes) - min(problem.sizes) <= 1
    blocks = [A for A, _ in problem.parts]
    assert theory.diversity_index(blocks, 1e-12) == pytest.approx(alpha, abs=1e-10)
    assert (problem.alpha, problem.kappa_max) == (alpha, kappa)
    for A, B in problem.parts:
        sigma = np.linalg.svd(A, compute_uv=False)
        rank = problem.meta["block_rank"]
        assert sigma[0] == pytest.approx(1)
        assert sigma[0] / sigma[rank - 1] == pytest.approx(kappa, rel=1e-9)
        assert (sigma[rank:] <= 1e-14).all()
        assert np.allclose(problem.W_star @ A, B, atol=1e-12)
    # C lies in the joint range, and D is the pooled answer.
    rank = problem.meta["rank"]
    U, sigma, Vt = np.linalg.svd(problem.A, full_matrices=False)
    assert (sigma[rank:] <= 1e-14).all()
    assert problem.kappa == pytest.approx(sigma[0] / sigma[rank - 1])
    U, sigma, Vt = U[:, :rank], sigma[:rank], Vt[:rank]
    assert np.allclose(U @ (U.T @ problem.C), problem.C, atol=1e-9)
    pooled = (problem.B @ Vt.T / sigma) @ (U.T @ problem.C)
    assert np.allclose(pooled, problem.D, atol=1e-12 * problem.kappa)


@pytest.mark.parametrize("alpha", [0.35, 0.1, 1e-2, 1e-6])
def test_the_conditioned_problem_has_a_spread_spectrum(alpha):
    problem = problems.distributed(60, 60, machines=5, alpha=alpha, kappa=100)
    ranges = [np.linalg.svd(A, full_matrices=False)[0] for A, _ in problem.parts]
    ranges = [U[:, : problem.meta["block_rank"]] for U in ranges]
    eigenvalues = np.linalg.eigvalsh(sum(U @ U.T for U in ranges) / 5)
    eigenvalues = eigenvalues[eigenvalues > alpha / 2]
    assert len(eigenvalues) == problem.meta["rank"]
    assert eigenvalues[0] == pytest.approx(alpha, rel=1e-7)
    assert len(np.unique(eigenvalues.round(9))) >= 3


@pytest.mark.parametrize("alpha", [1 / 5, 4 / 5])
def test_extreme_overlaps_leave_no_freedom(alpha):
    # Mutually orthogonal lines, or hyperplanes with orthogonal normals.
    problem = problems.distributed(60, 60, machines=5, alpha=alpha, kappa=100)
    ranges = [np.linalg.svd(A)[0][:, : problem.meta["block_rank"]] for A, _ in problem.parts]
    mean = sum(U @ U.T for U in ranges) / 5
    assert np.allclose(mean @ mean, alpha * mean, atol=1e-10)


def test_short_blocks_of_low_diversity_span_all_features():
    problem = problems.distributed(60, 60, machines=5, alpha=0.01, kappa=100)
    assert (problem.meta["block_rank"], problem.meta["rank"]) == (12, 60)


def test_a_rank_too_small_for_lines_is_made_of_hyperplanes():
    problem = problems.distributed(6, 15, machines=3, alpha=0.1, kappa=10, rank=5)
    assert problem.meta["rank"] == 6
    assert theory.diversity_index([A for A, _ in problem.parts], 1e-12) == pytest.approx(0.1)


def test_distributed_noise_touches_the_labels_alone():
    call = {"d": 8, "n": 4000, "machines": 2, "alpha": 0.3, "kappa": 10}
    clean, noisy = (problems.distributed(**call, noise=noise) for noise in (0.0, 0.01))
    for name in ("A", "C", "D", "D_star", "W_star"):
        assert np.array_equal(getattr(clean, name), getattr(noisy, name))
    assert np.var(noisy.B - clean.B) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"alpha": 0.7}, r"in \(0, 1 - 1/3\]"),
        ({"alpha": 1.5}, "alpha"),
        ({"alpha": 0}, "alpha"),
        ({"machines": 1}, "alpha must be 1"),
        ({"machines": 0}, "machines"),
        ({"n": 2}, "n must be"),
        ({"d": 2}, "alpha = 0.1 cannot be made with d = 2, 3 machines"),
        ({"rank": 9}, "rank = 9.*needs rank"),
        ({"rank": 11}, r"rank must be at most min\(d, n // machines\) = 9"),
        ({"rank": 0}, "rank"),
        ({"kappa": 0.5}, "kappa"),
        ({"rank": 1}, "kappa must be 1"),
        ({"noise": -1}, "noise"),
    ],
)
def test_an_impossible_distributed_prompt_says_what_is_possible(change, word):
    call = {"d": 9, "n": 30, "machines": 3, "alpha": 0.1, "kappa": 10.0}
    with pytest.raises(ValueError, match=word):
        problems.distributed(**(call | change))


@pytest.mark.parametrize("by", ["random", "class"])
@pytest.mark.parametrize("machines", [1, 4, 10])
def test_every_digit_goes_to_one_machine_or_the_queries(by, machines):
    problem = problems.digits_machines(machines, by=by, holdout=1000)
    assert len(problem.parts) == machines
    assert problem.A.shape == (64, 797)
    pixels = np.concatenate([problem.A, problem.C], axis=1)
    images = load_digits().data
    assert sorted(map(bytes, pixels.T.copy())) == sorted(map(bytes, images.copy()))
    classes = [set(B.argmax(axis=0)) for _, B in problem.parts]
    if by == "random":
        assert max(problem.sizes) - min(problem.sizes) <= 1
        assert all(len(held) == 10 for held in classes)
    else:
        assert sum(len(held) for held in classes) == 10
    blocks = [A for A, _ in problem.parts]
    assert problem.alpha == theory.diversity_index(blocks)
    assert problem.kappa_max == max(theory.condition_number(A) for A in blocks)
    assert np.allclose(problem.D_star, problem.B @ pinv(problem.A) @ problem.C, atol=1e-8)


def test_completing_a_prompt_classifies_held_out_digits():
    problem = problems.digits_labels(200, 300, rng=0)
    assert problem.B.shape == (10, 200)
    assert (problem.B.sum(axis=0) == 1).all()
    assert problems.digits_correct(problem, problem.D) == 300
    assert problems.digits_correct(problem, problem.D_star) >= 275
    assert problem.D.argmax(axis=0).tolist() == problem.meta["labels"].tolist()
    with pytest.raises(ValueError, match=r"\(10, 300\)"):
        problems.digits_correct(problem, problem.D[:, 1:])
    with pytest.raises(ValueError, match="digits_labels"):
        problems.digits_correct(problems.diabetes(), problem.D)


def test_diabetes_uses_every_patient_once():
    raw = problems.diabetes(standardize=False, intercept=False, holdout=42)
    assert raw.A.shape == (10, 400)
    assert raw.C.shape == (10, 42)
    assert {"age", "bmi"} < set(raw.meta["features"])
    patients = np.hstack([raw.A, raw.C])
    assert len(np.unique(patients.T, axis=0)) == 442
    assert raw.B.min() >= 25
    assert raw.B.max() <= 346


def test_diabetes_is_standardised_with_the_examples_alone():
    problem = problems.diabetes()
    assert problem.A[:-1].mean(axis=1) == pytest.approx(np.zeros(10), abs=1e-12)
    assert problem.A[:-1].std(axis=1) == pytest.approx(np.ones(10))
    assert (problem.A[-1] == 1).all()
    assert (problem.C[-1] == 1).all()
    assert abs(problem.C[:-1].mean(axis=1)).max() > 1e-3
    assert problem.meta["features"][-1] == "intercept"
    assert problem.kappa < problems.diabetes(standardize=False).kappa / 10
    explained = 1 - ((problem.D - problem.D_star) ** 2).mean() / problem.D.var()
    assert 0.3 < explained < 0.7


def test_own_files_become_one_prompt(tmp_path):
    A, B, C, D = np.eye(3, 4), np.ones((2, 4)), np.ones((3, 5)), np.zeros((2, 5))
    files.write_array(tmp_path / "A.npy", A.astype("float32"))
    files.write_array(tmp_path / "B.csv", B)
    files.write_array(tmp_path / "C.mtx", C)
    np.savez(tmp_path / "rest.npz", D=D, E=D)
    problem = problems.from_files(
        tmp_path / "A.npy", tmp_path / "B.csv", tmp_path / "C.mtx", f"{tmp_path / 'rest.npz'}:D"
    )
    assert {a.dtype for a in arrays(problem)} == {np.dtype("float64")}
    for found, given_ in zip((problem.A, problem.B, problem.C, problem.D), (A, B, C, D)):  # noqa: B905
        assert np.array_equal(found, given_)
    assert problem.D_star is None


def test_one_dimensional_labels_and_queries_become_a_row_and_a_column(tmp_path):
    for name, array in {
        "A": np.eye(3, 4),
        "B": np.ones(4),
        "C": np.ones(3),
        "D": np.ones(1),
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
    problem = problems.from_files(*(tmp_path / f"{name}.npy" for name in "ABCD"))
    assert problem.B.shape == (1, 4)
    assert problem.C.shape == (3, 1)
    assert problem.D.shape == (1, 1)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("A", (3,), ["A", "(3,)"]),
        ("B", (4, 2), ["B", "(d', 4)", "(4, 2)", "transposed"]),
        ("B", (2, 5), ["B", "(d', 4)", "(2, 5)"]),
        ("C", (5, 3), ["C", "(3, n')", "(5, 3)", "transposed"]),
        ("C", (6, 3, 5), ["C", "(6, 3, 5)"]),
        ("D", (5, 2), ["D", "(2, 5)", "(5, 2)"]),
    ],
)
def test_own_files_that_do_not_fit_are_named(tmp_path, name, shape, words):
    shapes = {"A": (3, 4), "B": (2, 4), "C": (3, 5), "D": (2, 5), name: shape}
    for block, size in shapes.items():
        np.save(tmp_path / f"{block}.npy", np.ones(size))
    with pytest.raises(ValueError, match=f"^{name}: ") as caught:
        problems.from_files(*(tmp_path / f"{block}.npy" for block in "ABCD"))
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_of_ones_own_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"A: .*A\.npy"):
        problems.from_files(tmp_path / "A.npy", tmp_path / "B.npy", tmp_path / "C.npy")


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_a_prompt_is_cut_into_the_blocks_it_was_made_of(kind):
    rng = np.random.default_rng(0)
    shapes = {"A": (2, 3, 5), "B": (2, 1, 5), "C": (2, 3, 4), "D": (2, 1, 4)}
    given_ = [kind(rng.normal(size=shape)) for shape in shapes.values()]
    X = problems.prompt_matrix(*given_)
    assert tuple(X.shape) == (2, 4, 9)
    for found, expected in zip(problems.blocks(X, 3, 5), given_, strict=True):
        assert bool((found == expected).all())
    masked = problems.prompt_matrix(*given_[:3])
    assert bool((masked[:, 3:, 5:] == 0).all())
    assert masked.dtype == X.dtype


@given(st.integers(2, 30), st.data())
def test_a_split_puts_every_example_on_one_side(total, data):
    holdout = data.draw(st.integers(1, total - 1))
    features = np.arange(2 * total).reshape(2, total)
    A, B, C, D = problems.split(features, features[0], holdout, rng=data.draw(st.integers(0, 99)))
    assert C.shape == (2, holdout)
    assert sorted([*A[0], *C[0]]) == list(range(total))
    assert np.array_equal(A[0], B[0])
    assert np.array_equal(C[0], D[0])


def test_numpy_numbers_are_accepted_as_numbers():
    problem = problems.completion(np.int64(4), np.int32(5), kappa=np.float32(10), batch=np.int64(2))
    assert problem.A.shape == (2, 4, 5)


COMPLETION_ERRORS = [
    ({"d": 0}, ValueError, "d must"),
    ({"n": 2.5}, TypeError, "n must"),
    ({"n": True}, TypeError, "n must"),
    ({"d_out": -1}, ValueError, "d_out"),
    ({"n_query": "2"}, TypeError, "n_query"),
    ({"kappa": 0.5}, ValueError, "kappa"),
    ({"kappa": np.inf}, ValueError, "kappa"),
    ({"kappa": "big"}, TypeError, "kappa"),
    ({"kappa": 1e7, "dtype": "float32"}, ValueError, "kappa must be below 8.4e"),
    ({"kappa": 10, "rank": 1}, ValueError, "kappa must be 1"),
    ({"rank": 7}, ValueError, r"rank must be at most min\(d, n\) = 6"),
    ({"rank": 0}, ValueError, "rank"),
    ({"spectrum": "foo"}, ValueError, "log-uniform, log-spaced"),
    ({"noise": -1}, ValueError, "noise"),
    ({"noise": np.nan}, ValueError, "noise"),
    ({"s": 3}, ValueError, "s and alpha"),
    ({"spectrum": "low-rank", "kappa": 10}, ValueError, "low-rank"),
    ({"spectrum": "low-rank", "alpha": 0}, ValueError, "alpha"),
    ({"batch": (2, 0)}, ValueError, "batch"),
    ({"batch": 1.5}, TypeError, "batch"),
    ({"dtype": "int64"}, ValueError, "dtype"),
    ({"dtype": "decimal"}, TypeError, "dtype"),
]


@pytest.mark.parametrize(("change", "error", "word"), COMPLETION_ERRORS)
def test_a_wrong_argument_is_named(change, error, word):
    with pytest.raises(error, match=word):
        problems.completion(**({"d": 6, "n": 6} | change))


def test_a_sparse_draw_of_less_than_full_rank_is_a_problem_of_its_rank():
    problem = problems.completion(6, 6, spectrum="sparse-rademacher", batch=40, rng=1)
    rank = np.linalg.matrix_rank(problem.A)
    assert problem.meta["rank"].tolist() == rank.tolist()
    assert 0 < rank.min() < rank.max()
    assert problem.error(problem.B @ pinv(problem.A) @ problem.C).max() < 1e-10
    assert problem.kappa == pytest.approx(theory.condition_number(problem.A))


def test_a_sparse_draw_that_misses_the_rank_says_so():
    with pytest.raises(ValueError, match="rank 3 is needed"):
        problems.completion(3, 3, spectrum="sparse-rademacher", rank=3, rng=0)
    with pytest.raises(ValueError, match="has rank 0, but rank 1 is needed"):
        problems.completion(1, 1, spectrum="sparse-rademacher", rng=0)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: problems.regression(3, 4, x="cauchy"), "gaussian, uniform"),
        (lambda: problems.regression(3, 4, noise=[1.0, 2.0]), "noise"),
        (lambda: problems.regression(3, 4, noise=-1.0), "noise"),
        (lambda: problems.regression(3, 4, kappa=0.1), "kappa"),
        (lambda: problems.regression(1, 4, kappa=5.0), "rank 1"),
        (lambda: problems.digits_kernel(1000, 1000), "at most 1797"),
        (lambda: problems.digits_labels(gamma=0.0), "gamma"),
        (lambda: problems.digits_labels(n_landmarks=1), "n_landmarks"),
        (lambda: problems.digits_machines(3, by="hand"), "random or class"),
        (lambda: problems.digits_machines(11, by="class"), "at most 10"),
        (lambda: problems.digits_machines(5, holdout=1793), "at most the 4 images"),
        (lambda: problems.digits_machines(10, by="class", holdout=1780), "hold out fewer"),
        (lambda: problems.diabetes(holdout=442), "at most 441"),
        (lambda: problems.split(np.ones((2, 3)), np.ones(4), 1), "one column an example"),
        (lambda: problems.blocks(np.ones((3, 3)), 3, 2), "more than d = 3"),
        (lambda: problems.prompt_matrix(np.eye(2), np.ones((1, 3)), np.eye(2)), "fit together"),
        (
            lambda: problems.prompt_matrix(np.eye(2), np.eye(2), np.eye(2), np.ones((2, 3))),
            r"D must have shape \(2, 2\)",
        ),
    ],
)
def test_a_wrong_call_says_what_is_allowed(call, word):
    with pytest.raises(ValueError, match=word):
        call()
