"""Distributed EAGLE: hand-worked machines, closed-form limits, honest ends, counted messages."""

import numpy as np
import pytest
import torch
from matrices import relative_error, with_singular_values
from sklearn.datasets import load_digits

from linear_icl import problems, solvers
from linear_icl.solvers import SolverError, Status
from linear_icl.solvers._machines import InProcess, Machine, run

METHODS = ("average", "frozen", "cg", "pooled", "gd", "nesterov", "raw-cg")
CONDITIONED = ("average", "frozen", "cg")
GOLDEN = [1.25, 1.6044921875, 1.9030092167, 1.9952677586]


def machines(sizes, d=12, kappa=6.0, *, rank=None, noise=0.0, seed=0):
    """Parts with random ranges, and a query."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((2, d))
    parts = []
    for n in sizes:
        sigma = np.geomspace(1, 1 / kappa, min(d, n) if rank is None else rank)
        A = with_singular_values(sigma, d, n, rng)
        parts.append((A, W @ A + noise * rng.standard_normal((2, n))))
    return parts, rng.standard_normal((d, 3))


def pooled(parts, C):
    A, B = (np.concatenate(blocks, axis=1) for blocks in zip(*parts, strict=True))
    return B @ np.linalg.pinv(A) @ C


def average_of_local_fits(parts, C):
    inverses = [np.linalg.pinv(A) for A, _ in parts]
    total = sum(A @ inverse for (A, _), inverse in zip(parts, inverses, strict=True))
    fits = sum(B @ inverse for (_, B), inverse in zip(parts, inverses, strict=True))
    return fits @ np.linalg.pinv(total) @ C


def test_one_machine_runs_through_the_golden_values():
    seen = []
    part = ([[2, 0], [0, 1]], [[2, 1]])
    result = solvers.eagle_distributed([part], [[1], [1]], callback=lambda D: seen.append(D.item()))
    np.testing.assert_allclose(seen[:4], GOLDEN, atol=1e-10)
    assert result.converged
    assert result.D.item() == pytest.approx(2, abs=1e-9)


@pytest.mark.parametrize("n", [8, 12, 30])
def test_one_machine_takes_the_layers_of_eagle(n):
    [(A, B)], C = machines([n], noise=0.1)
    C = A @ np.random.default_rng(1).standard_normal((n, 3))
    alone, seen = [], []
    solvers.eagle(A, B, C, callback=alone.append, form="data", rtol=1e-14)
    solvers.eagle_distributed([(A, B)], C, callback=seen.append, rtol=1e-14)
    for mine, eagles in zip(seen, alone, strict=False):
        np.testing.assert_allclose(mine, eagles, atol=1e-11 * np.abs(eagles).max())


def test_two_machines_by_hand():
    # ‖A_1‖ = 2 and ‖A_2‖ = 1, so both blocks are unit vectors e_1 and e_2: α = 1/2, and every
    # round halves C. D_1 = (4/2 · 1 + 3 · 1)/2 = 2.5, D_2 = 2.5 + 1.25, …, D* = 2 + 3.
    parts = [([[2.0], [0.0]], [[4.0]]), ([[0.0], [1.0]], [[3.0]])]
    seen = []
    result = solvers.eagle_distributed(
        parts, [[1.0], [1.0]], rtol=1e-3, callback=lambda D: seen.append(D.item())
    )
    np.testing.assert_allclose(seen[:3], [2.5, 3.75, 4.375], rtol=1e-15)
    assert result.iterations == 10  # 2⁻¹⁰ ≤ 1e-3 < 2⁻⁹
    np.testing.assert_allclose(result.history, 0.5 ** np.arange(11), rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sizes", [(12, 12), (15, 20, 13), (9, 7, 6), (12, 3, 0, 7), (40, 2)])
def test_noiseless_labels_give_the_pooled_prediction(method, sizes):
    parts, C = machines(sizes)
    result = solvers.eagle_distributed(parts, C, method=method, rtol=1e-10, maxiter=200_000)
    assert result.converged
    assert relative_error(result.D, pooled(parts, C)) < 1e-8


@pytest.mark.parametrize("method", ["frozen", "cg"])
def test_equal_ranges_take_no_more_rounds_than_one_machine(method):
    parts, C = machines([12] * 4)
    one = solvers.eagle_distributed(parts[:1], C, method=method)
    four = solvers.eagle_distributed(parts, C, method=method)
    assert abs(four.iterations - one.iterations) <= 1


def test_orthogonal_ranges_are_solved_by_conjugate_gradients_in_one_round():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    W = rng.standard_normal((2, 12))
    blocks = [Q[:, k : k + 4] @ rng.standard_normal((4, 4)) for k in (0, 4, 8)]
    C = rng.standard_normal((12, 1))
    parts = [(A, W @ A) for A in blocks]
    result = solvers.eagle_distributed(parts, C, method="cg")
    assert result.iterations == 2  # and one to check
    np.testing.assert_allclose(result.D, W @ C, rtol=1e-10)
    # α = 1/3: every round leaves two thirds.
    plain = solvers.eagle_distributed(parts, C, method="frozen")
    late = plain.history[-5:]
    np.testing.assert_allclose(late[1:] / late[:-1], 2 / 3, rtol=1e-6)


def test_conjugate_gradients_take_the_root_of_the_rounds():
    problem = problems.distributed(60, 60, 2, 2, machines=4, alpha=0.02, kappa=20.0, rng=0)
    rounds = {
        method: solvers.eagle_distributed(problem.parts, problem.C, method=method).iterations
        for method in ("frozen", "cg")
    }
    # ln(1/ε)/α against ½ √(1/α) ln(2/ε), and a round to check.
    assert rounds["cg"] <= 0.5 * 0.02**-0.5 * np.log(2e8) + 3
    assert rounds["frozen"] > 8 * rounds["cg"]


@pytest.mark.parametrize("sizes", [(30, 30), (40, 9, 9), (6, 5, 9)])
def test_noise_leads_conjugate_gradients_to_the_average_of_local_fits(sizes):
    parts, C = machines(sizes, noise=0.5)
    result = solvers.eagle_distributed(parts, C, method="cg", rtol=1e-12)
    assert result.converged
    assert relative_error(result.D, average_of_local_fits(parts, C)) < 1e-9
    assert relative_error(result.D, pooled(parts, C)) > 1e-2


def test_noise_leads_isometric_blocks_to_the_average_of_local_fits_in_printed_rounds_too():
    parts, C = machines((7, 8, 9), kappa=1.0, noise=0.5)
    result = solvers.eagle_distributed(parts, C, method="average", rtol=1e-11, maxiter=100_000)
    assert result.converged
    assert relative_error(result.D, average_of_local_fits(parts, C)) < 1e-8


@pytest.mark.parametrize("method", ["average", "frozen"])
def test_noise_makes_the_printed_rounds_depend_on_the_way(method):
    parts, C = machines((30, 30), noise=0.5)
    D = solvers.eagle_distributed(parts, C, method=method, rtol=1e-12).D
    # D = Σ_l mean(W_μ E_μ,l) C_l, summed by hand; neither limit of theory is that.
    blocks = [A / np.linalg.norm(A, 2) for A, _ in parts]
    fits = [B @ np.linalg.pinv(A) for A, B in parts]
    left, expected = C, 0.0
    for _ in range(60):
        gram = [A @ A.T for A in blocks]
        expected = expected + sum(W @ (E @ left) for W, E in zip(fits, gram, strict=True)) / 2
        left = left - sum(E @ left for E in gram) / 2
        blocks = [A - (A @ A.T) @ A / 3 for A in blocks]
        blocks = [A / np.linalg.norm(A, 2) for A in blocks]
    np.testing.assert_allclose(D, expected, rtol=1e-9)
    assert relative_error(D, average_of_local_fits(parts, C)) > 1e-3
    assert relative_error(D, pooled(parts, C)) > 1e-3


@pytest.mark.parametrize("method", ["pooled", "gd", "nesterov", "raw-cg"])
@pytest.mark.parametrize("sizes", [(40, 30, 50), (9, 8, 10), (40, 0, 5)])
def test_noise_leaves_the_pooled_methods_at_least_squares(method, sizes):
    parts, C = machines(sizes, noise=0.5)
    result = solvers.eagle_distributed(parts, C, method=method, rtol=1e-11, maxiter=500_000)
    A, B = (np.concatenate(blocks, axis=1) for blocks in zip(*parts, strict=True))
    expected = np.linalg.lstsq(A.T, B.T, rcond=None)[0].T @ C
    assert result.converged
    assert relative_error(result.D, expected) < 1e-8


def test_blocks_of_one_distribution_precondition_each_other():
    rng = np.random.default_rng(0)
    d = 40
    factor = np.linalg.qr(rng.standard_normal((d, d)))[0] * np.geomspace(1, 1e-3, d)
    parts = []
    for _ in range(4):
        A = factor @ rng.standard_normal((d, 400))
        parts.append((A, rng.standard_normal((1, 400))))
    C = rng.standard_normal((d, 2))
    fast, plain = (
        solvers.eagle_distributed(parts, C, method=m, rtol=1e-6) for m in ("pooled", "raw-cg")
    )
    assert fast.converged
    assert plain.converged
    assert 5 * fast.iterations < plain.iterations


@pytest.mark.parametrize("method", ["average", "frozen", "cg", "raw-cg"])
def test_a_query_out_of_the_joint_range_is_predicted_by_least_norm(method):
    parts, C = machines((3, 4))
    result = solvers.eagle_distributed(parts, C, method=method, rtol=1e-8)
    assert result.converged
    assert relative_error(result.D, pooled(parts, C)) < 1e-7


@pytest.mark.parametrize("method", CONDITIONED)
@pytest.mark.parametrize("n", [24, 60])
def test_rank_deficient_blocks_stop_by_themselves_without_drift(method, n):
    parts, C = machines((n, n), d=24, rank=8, kappa=1e3)
    result = solvers.eagle_distributed(parts, C, method=method, rtol=1e-11, maxiter=20_000)
    assert result.converged
    assert relative_error(result.D, pooled(parts, C)) < 1e-9


@pytest.mark.parametrize("method", CONDITIONED)
def test_many_rounds_after_conditioning_do_no_harm(method):
    parts, C = machines((24, 24, 30), d=24, rank=12, noise=0.3)
    result = solvers.eagle_distributed(parts, C, method=method, rtol=1e-12, maxiter=2000)
    assert np.isfinite(result.D).all()
    assert result.converged
    if method == "cg":
        assert relative_error(result.D, average_of_local_fits(parts, C)) < 1e-10


@pytest.mark.parametrize("method", ["frozen", "cg", "pooled", "raw-cg"])
def test_a_long_block_read_from_a_file_gives_what_its_columns_give(method, tmp_path):
    parts, C = machines((12, 9))
    rng = np.random.default_rng(1)
    A = parts[0][0] @ rng.standard_normal((12, 50_000))
    parts[0] = (A, rng.standard_normal((2, 12)) @ A + rng.standard_normal((2, 50_000)))
    np.save(tmp_path / "A.npy", parts[0][0])
    mapped = np.load(tmp_path / "A.npy", mmap_mode="r")
    options = {"method": method, "rtol": 1e-12}
    streamed = solvers.eagle_distributed([(mapped, parts[0][1]), parts[1]], C, **options)
    # The same Gram matrix and labels in d columns.
    Q = np.linalg.qr(parts[0][0].T)[0]
    short = [(parts[0][0] @ Q, parts[0][1] @ Q), parts[1]]
    expected = solvers.eagle_distributed(short, C, **options)
    assert streamed.converged
    np.testing.assert_allclose(streamed.D, expected.D, rtol=1e-10)


def test_a_long_ill_conditioned_block_is_not_squared():
    parts, C = machines((300, 12), kappa=1e8)
    result = solvers.eagle_distributed(parts, C, method="cg")
    assert result.converged
    assert relative_error(result.D, pooled(parts, C)) < 1e-6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("what", ["A", "B", "C", "everything"])
def test_zeros_are_answered_at_once(method, what):
    parts, C = machines((12, 12))
    parts = [(A * (what not in ("A", "everything")), B * (what not in ("B", "everything")))
             for A, B in parts]  # fmt: skip
    C = C * (what not in ("C", "everything"))
    result = solvers.eagle_distributed(parts, C, method=method)
    assert result.converged
    assert result.iterations == 0
    assert not result.D.any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [2.0**-500, 2.0**500])
def test_the_units_of_the_data_change_nothing_but_the_scale(method, scale):
    parts, C = machines((12, 14, 5))
    plain = solvers.eagle_distributed(parts, C, method=method, maxiter=300)
    for a, b, c in ((scale, 1, 1), (1, scale, 1), (1, 1, scale), (scale, scale, 1)):
        scaled = [(a * A, b * B) for A, B in parts]
        result = solvers.eagle_distributed(scaled, c * C, method=method, maxiter=300)
        assert result.iterations == plain.iterations
        np.testing.assert_allclose(result.D * (a / b / c), plain.D, rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_messages_are_counted(method):
    parts, C = machines((12, 14))
    result = solvers.eagle_distributed(parts, C, method=method, maxiter=7, rtol=1e-14)
    sent = result.communication
    assert result.iterations <= 7
    assert sent.rounds == result.iterations + 1
    assert sent.bytes == 8 * sent.numbers
    payload = (12 + 2) * 3 * result.iterations + 3
    # Power iteration and preconditioning send d n' numbers.
    shorter = {"gd": 7, "nesterov": 7, "pooled": 4}.get(method, 0)
    assert payload - shorter * 2 * 3 <= sent.numbers <= payload
    assert len(result.history) == result.iterations + 1


@pytest.mark.parametrize("method", METHODS)
def test_a_run_continues_from_any_round_to_the_same_bits(method):
    parts, C = machines((12, 5, 20), noise=0.2)
    options = {"method": method, "rtol": 1e-9, "maxiter": 60}
    kept = []

    def solve(**more):
        return run([Machine(A, B) for A, B in parts], C, InProcess(3), **options, **more)

    whole = solve(on_round=lambda state: kept.append({k: v.copy() for k, v in state.items()}))
    assert len(kept) == whole.iterations
    for state in kept[::7]:
        again = solve(state=state)
        assert (again.D == whole.D).all()
        assert (again.history == whole.history).all()
        assert again.status is whole.status
        assert again.iterations == whole.iterations


@pytest.mark.parametrize("method", METHODS)
def test_the_same_call_gives_the_same_bits(method):
    parts, C = machines((12, 5, 20))
    first, second = (
        solvers.eagle_distributed(parts, C, method=method, maxiter=50) for _ in range(2)
    )
    assert (first.D == second.D).all()


@pytest.mark.parametrize("method", METHODS)
def test_what_ran_out_of_rounds_says_so(method):
    parts, C = machines((4, 5, 6), kappa=100.0)
    result = solvers.eagle_distributed(parts, C, method=method, maxiter=3)
    assert result.status is Status.MAXITER
    assert result.iterations == 3
    with pytest.raises(SolverError, match="limit"):
        solvers.eagle_distributed(parts, C, method=method, maxiter=3, raise_on_failure=True)


def test_steps_that_are_too_long_are_not_called_converged():
    parts, C = machines((12, 12))
    result = solvers.eagle_distributed(parts, C, gamma=5.0)
    assert result.status is Status.BREAKDOWN
    assert np.isfinite(result.D).all()


def test_weights_are_what_is_left_without_a_query():
    parts, C = machines((12, 14))
    W = solvers.eagle_distributed(parts, method="cg").W
    np.testing.assert_allclose(W @ C, pooled(parts, C), rtol=1e-7)
    rows = [(A, B[0]) for A, B in parts]
    result = solvers.eagle_distributed(rows, method="cg")
    assert result.D is None
    np.testing.assert_allclose(result.W, W[0], rtol=1e-7)
    assert solvers.eagle_distributed(rows, C[:, 0], method="cg").D.shape == ()


def test_every_example_is_used():
    parts, C = machines((30, 17, 40), noise=0.5)
    D = solvers.eagle_distributed(parts, C, method="pooled", rtol=1e-12).D
    A, B = (np.concatenate(blocks, axis=1) for blocks in zip(*parts, strict=True))
    shuffled = np.random.default_rng(0).permutation(A.shape[1])
    cuts = np.split(shuffled, [20, 30])
    again = solvers.eagle_distributed(
        [(A[:, k], B[:, k]) for k in cuts], C, method="pooled", rtol=1e-12
    ).D
    np.testing.assert_allclose(D, again, rtol=1e-8)


def test_tensors_and_single_precision_come_back_as_they_went_in():
    parts, C = machines((12, 14))
    tensors = [(torch.tensor(A), torch.tensor(B)) for A, B in parts]
    D = solvers.eagle_distributed(tensors, torch.tensor(C), method="cg").D
    assert isinstance(D, torch.Tensor)
    np.testing.assert_allclose(D.numpy(), pooled(parts, C), rtol=1e-7)
    single = [(A.astype(np.float32), B.astype(np.float32)) for A, B in parts]
    result = solvers.eagle_distributed(single, C.astype(np.float32), method="cg", rtol=1e-6)
    assert result.D.dtype == np.float32
    assert relative_error(result.D, pooled(parts, C)) < 1e-4


def test_inputs_are_left_alone():
    parts, C = machines((12, 5))
    before = [block.copy() for part in parts for block in part] + [C.copy()]
    for method in METHODS:
        solvers.eagle_distributed(parts, C, method=method, maxiter=20)
    after = [block for part in parts for block in part] + [C]
    assert all((x == y).all() for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p, C: ([], C), "parts is empty"),
        (lambda p, C: ([p[0], (p[1][0],)], C), "part 1 must be a pair"),
        (lambda p, C: ([p[0], (p[1][0][:5], p[1][1])], C), "part 1: A has 5 features"),
        (lambda p, C: ([p[0], (p[1][0], p[1][1][:1])], C), "part 1: B must have as many outputs"),
        (lambda p, C: ([p[0], (p[1][0], p[1][1][:, :3])], C), "part 1: B must have one column"),
        (lambda p, C: ([p[0], (p[1][0] * np.nan, p[1][1])], C), "part 1: A .*NaN"),
        (lambda p, C: ([p[0], (p[1][0], p[1][1] * np.inf)], C), "part 1: B .*NaN"),
        (lambda p, C: ([(A[None], B) for A, B in p], C), "part 0: A must have shape"),
        (lambda p, C: (p, C[:5]), "C must have one row a feature"),
        (lambda p, C: (p, C * np.nan), "C .*NaN"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_does_not_fit_is_named(change, words):
    parts, C = machines((12, 5))
    given, query = change(parts, C)
    with pytest.raises(ValueError, match=words):
        solvers.eagle_distributed(given, query)


@pytest.mark.parametrize(
    "options",
    [{"method": "gmres"}, {"eta": 0}, {"gamma": -1}, {"rtol": -1}, {"maxiter": 2.5}, {"rcond": 2}],
)
def test_options_that_make_no_sense_are_refused(options):
    parts, C = machines((12, 5))
    with pytest.raises(ValueError, match=next(iter(options))):
        solvers.eagle_distributed(parts, C, **options)


def test_digits_over_five_machines_are_fitted_as_in_one():
    images, labels = load_digits(return_X_y=True)
    A, B = images.T, np.eye(10)[labels].T
    parts = [(A[:, k::5], B[:, k::5]) for k in range(5)]  # three pixels are always blank
    expected = B @ np.linalg.pinv(A) @ A[:, :100]
    result = solvers.eagle_distributed(parts, A[:, :100], method="pooled")
    assert result.converged
    assert relative_error(result.D, expected) < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_called_converged_that_is_not(method):
    # C out of the joint range, a block of unclear rank, and a step that annihilates a direction.
    parts, C = machines((4, 3), kappa=1e7, noise=0.1)
    expected = average_of_local_fits(parts, C), pooled(parts, C)
    for options in ({}, {"eta": 1.0}, {"rcond": 1e-3}):
        result = solvers.eagle_distributed(parts, C, method=method, maxiter=500, **options)
        if result.converged and options != {"rcond": 1e-3}:
            assert min(relative_error(result.D, D) for D in expected) < 1e-4


@pytest.mark.parametrize("method", ["gd", "nesterov"])
def test_a_weak_direction_that_has_not_moved_is_not_taken_for_one_outside(method):
    A = np.diag([1, 1e-6])
    result = solvers.eagle_distributed([(A, [[1, 1e-6]])], [[1.0], [1.0]], method=method)
    assert not result.converged
