r"""The claims of the source document: what each says, what holds, and where that is decided.

The chapters measure; this is the list that chapter 11 is made from. A claim's verdict is what
the stored run of its chapter recorded under the claim's label, by ``chapters.record``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from linear_icl import chapters

CONFIRMED, IN_PART = "confirmed", "confirmed in part"
CORRECTED, NOT_REPRODUCED = "corrected", "not reproduced"
#: The verdicts there are. A claim *in part* holds under a condition that it does not state.
VERDICTS = (CONFIRMED, IN_PART, CORRECTED, NOT_REPRODUCED)
#: Instead of a verdict, while the chapter that decides a claim is not yet in the book.
PENDING = "pending"

# What a measurement may find: for a formula that is right, for one that is wrong (the fault may
# fail to show), and for a statement that only a measurement can judge.
_RIGHT = (CONFIRMED, IN_PART, NOT_REPRODUCED)
_WRONG = (CORRECTED, NOT_REPRODUCED)
_OPEN = VERDICTS


@dataclass(frozen=True)
class Claim:
    """One claim of the source document.

    Attributes
    ----------
    label : str
        Its name in the book, such as ``"E4"``.
    theme : str
        The heading it stands under.
    statement : str
        What the document says, in this book's words, as Markdown.
    finding : str
        What holds; for a claim that is corrected, how it should read.
    allowed : tuple of str
        The verdicts that a measurement may give.
    chapter : str
        The notebook that decides.
    figure : str
        What the chapter measured, with the names of its recorded results in braces. If empty, it
        is what chapter 11 recorded as ``<label>_measured``, over several prompts.
    """

    label: str
    theme: str
    statement: str
    finding: str
    allowed: tuple[str, ...]
    chapter: str
    figure: str = ""

    @property
    def target(self) -> str:
        """The MyST target of the section that decides."""
        return f"claim-{self.label.lower()}"

    @property
    def pending(self) -> bool:
        """Whether the chapter that decides is still to be written."""
        return self.chapter not in chapters.CHAPTERS


_FRAMING = "01_icl_framing"
_NORMAL = "02_normal_equations"
_DESCENT = "03_gradient_descent"
_CONJUGATE = "04_conjugate_gradient"
_GDPP = "05_gd_plus_plus"
_EAGLE = "06_eagle"
_SKETCHES = "07_rank_restricted_attention"
_TRAINING = "08_training_transformers"
_MEASURED = "09_experiments"
_CLAIMS = "11_claims"

_LEAST_SQUARES = "Attention and least squares"
_FIRST_ORDER = "Gradient descent and conjugate gradients"
_LAYERS = "What the layers carry"
_PRECONDITIONED = "The preconditioned method"
_THE_UPDATE = "EAGLE"
_RESTRICTED = "Sketches and machines"
_EXPERIMENTS = "The experiments"
_BIAS = "What training finds"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "F1",
        _LEAST_SQUARES,
        r"Linear attention with four matrices merges into $\sum_j(e_j^\top Qe_i)Pe_j$.",
        r"With $Q = W_K^\top W_Q$ and $P = W_PW_V$, which the document leaves open.",
        _RIGHT,
        _FRAMING,
    ),
    Claim(
        "N1",
        _LEAST_SQUARES,
        r"$w^* = \Sigma^{-1}\alpha$, and $\Sigma$ is the covariance of the features.",
        r"For full row rank; $\Sigma$ is a Gram matrix (no centring, no $1/n$), and with $n < d$ "
        r"the pseudoinverse takes over.",
        _RIGHT,
        _NORMAL,
    ),
    Claim(
        "N2",
        _LEAST_SQUARES,
        r"Least squares is computed by inverting $\Sigma$.",
        r"Factorise $A$ (QR); the printed routine uses two operations that do not exist, and the "
        r"inverse that it means loses twice the digits.",
        _WRONG,
        _NORMAL,
    ),
    Claim(
        "N3",
        _LEAST_SQUARES,
        r"Solving directly costs $O(d^3)$.",
        r"$O(nd^2 + d^3)$: forming $\Sigma$ is the larger part as soon as $n \ge d$.",
        _WRONG,
        _NORMAL,
    ),
    Claim(
        "N4",
        _LEAST_SQUARES,
        r"$\sum_i(y_i - \langle w, x_i\rangle)^2$ is the mean squared error.",
        r"It is the sum. The minimiser is the same, the gradient is $n$ times as large, and with "
        r"it every fixed step (see G2).",
        _WRONG,
        _CLAIMS,
    ),
    Claim(
        "G1",
        _FIRST_ORDER,
        r"Gradient descent steps by $-\eta\sum_i(y_i - \langle w, x_i\rangle)x_i$.",
        r"The sign is $+$, and the gradient has a factor 2. As printed the loss grows.",
        _WRONG,
        _DESCENT,
    ),
    Claim(
        "G2",
        _FIRST_ORDER,
        r"A step of 0.01 on the summed gradient, whatever the data.",
        r"It diverges once $0.01\,\lambda_{\max}(\Sigma) > 2$; take $1/\lambda_{\max}(\Sigma)$.",
        _WRONG,
        _DESCENT,
    ),
    Claim(
        "G3",
        _FIRST_ORDER,
        r"Gradient descent takes $O(\kappa\log(1/\varepsilon))$ steps.",
        r"With $\kappa = \kappa(\Sigma) = \kappa(A)^2$.",
        _RIGHT,
        _DESCENT,
    ),
    Claim(
        "C1",
        _FIRST_ORDER,
        r"CG takes $O(\sqrt\kappa\log(1/\varepsilon))$ steps, fewer than gradient descent.",
        r"With $\kappa = \kappa(\Sigma)$. At most $d$ steps in exact arithmetic only.",
        _RIGHT,
        _CONJUGATE,
        "steps grow as κ(A) to the power {slope_cg}, gradient descent's as {slope_gd}",
    ),
    Claim(
        "C2",
        _FIRST_ORDER,
        r"A CG routine that stops at a residual of $10^{-8}$, and divides without looking.",
        r"$b = 0$ or an exact start is 0/0, and with an absolute test the answer depends on the "
        r"units of $b$: test against $\lVert b\rVert$, before the first step.",
        _WRONG,
        _CONJUGATE,
    ),
    Claim(
        "T1",
        _LAYERS,
        r"Every layer keeps $x = Mx + yu$ and $y = ay - \langle w, x\rangle$, and predicts with "
        r"one weight vector $w$.",
        r"For any weights, with the *inputs* of the first layer on the right.",
        _RIGHT,
        _GDPP,
    ),
    Claim(
        "T2",
        _LAYERS,
        r"Hence every layer does a variant of preconditioned gradient descent.",
        r"For the weights of GD++ it does. Other weights move $w$ where the gradient is zero.",
        _RIGHT,
        _CLAIMS,
    ),
    Claim(
        "P1",
        _LAYERS,
        r"GD++: $x \leftarrow (I + \omega_{xx}\Sigma)x$, "
        r"$y \leftarrow y + \omega_{yx}\langle\alpha, x\rangle$.",
        r"It equals an explicit stack of linear attention.",
        _RIGHT,
        _GDPP,
    ),
    Claim(
        "P2",
        _LAYERS,
        r"GD++ is second order: $O(\log\kappa + \log\log(1/\varepsilon))$ layers.",
        r"A straight line in $\log\kappa$, and the error squares at the end.",
        _RIGHT,
        _GDPP,
        "{layers_per_factor_e_of_kappa} layers for each factor of e in κ(A), theory 2.47; order at "
        "the end {order_at_the_end}",
    ),
    Claim(
        "P3",
        _LAYERS,
        r"A class that shows GD++.",
        r"It uses two attributes that are never set and never transforms $x$: with them supplied "
        r"it is plain gradient descent.",
        _WRONG,
        _GDPP,
    ),
    Claim(
        "P4",
        _LAYERS,
        r"Layer by layer, a transformer resembles online learning.",
        r"As an analogy: each layer sees the whole prompt, an online step one example.",
        _RIGHT,
        _GDPP,
        "error after one layer {error_after_one_layer}, after one online pass over the same "
        "examples {error_after_one_online_pass}",
    ),
    Claim(
        "Q1",
        _PRECONDITIONED,
        r"PCG's $\alpha$ and $\beta$ are made of $r^\top r$.",
        r"Those are CG's; PCG needs $r^\top z$ in both.",
        _WRONG,
        _CONJUGATE,
    ),
    Claim(
        "Q2",
        _PRECONDITIONED,
        r"Preconditioning solves $M^{-1}Ax = M^{-1}b$.",
        r"The solution is the same, but the matrix is not symmetric: $M$ must be positive "
        r"definite, and the scalar product $M$'s.",
        _RIGHT,
        _CONJUGATE,
    ),
    Claim(
        "Q3",
        _PRECONDITIONED,
        r"$M$ approximates $A^{-1}$, in a routine that solves with $M$.",
        r"There $M \approx A$. This package follows SciPy: $M \approx A^{-1}$, and it is applied.",
        _WRONG,
        _CONJUGATE,
    ),
    Claim(
        "Q4",
        _PRECONDITIONED,
        r"$\beta = z_+^\top r_+/z^\top r_+$, as the routine computes it.",
        r"Below stands $z^\top r$, both old; as computed it is zero up to rounding.",
        _WRONG,
        _CONJUGATE,
    ),
    Claim(
        "Q5",
        _PRECONDITIONED,
        r"Stop when $\lvert p^\top Ap\rvert < 10^{-12}$.",
        r"Guards must be relative to the data: a system in small units returns zeros as if solved.",
        _WRONG,
        _CONJUGATE,
    ),
    Claim(
        "E1",
        _THE_UPDATE,
        r"The Nyström answer is $BA(AA^\top)^\dagger C$.",
        r"$BA^\top(AA^\top)^\dagger C$; as printed the shapes do not agree.",
        _WRONG,
        _EAGLE,
    ),
    Claim(
        "E2",
        _THE_UPDATE,
        r"The four updates of EAGLE.",
        r"With old values on all right-hand sides; $D$'s sign is turned against attention's.",
        _RIGHT,
        _EAGLE,
    ),
    Claim(
        "E3",
        _THE_UPDATE,
        r"A routine for EAGLE, with $\tilde A\tilde A^\top AS^\top$.",
        r"$\tilde A\tilde A^\top\tilde AS^\top$; as printed it does not conform for $r < n$.",
        _WRONG,
        _EAGLE,
    ),
    Claim(
        "E4",
        _THE_UPDATE,
        r"$\eta \approx 1$, $\gamma \approx 1.9$ with each prompt's own $\rho$.",
        r"The values belong to the largest norm of a training batch; with a prompt's own norm take "
        r"$(\tfrac13, 1)$.",
        _WRONG,
        _EAGLE,
    ),
    Claim(
        "E5",
        _THE_UPDATE,
        r"EAGLE is an implicit PCG.",
        r"A preconditioned Richardson iteration: its directions are never conjugate.",
        _WRONG,
        _EAGLE,
    ),
    Claim(
        "E6",
        _THE_UPDATE,
        r"Theorem 1 has $\log\log\bigl(1/(\varepsilon\sqrt{d'}\,\lVert W^*\rVert\lVert C\rVert)"
        r"\bigr)$.",
        r"$\log\log\bigl(\sqrt{d'}\,\lVert W^*\rVert\lVert C\rVert/\varepsilon\bigr)$; as printed, "
        r"larger problems would need fewer layers.",
        _WRONG,
        _EAGLE,
    ),
    Claim(
        "E7",
        _THE_UPDATE,
        r"$\tfrac12(3I - \bar A\bar A^\top)\bar A$ is Newton–Schulz for the matrix sign.",
        r"For the polar factor, which is the sign of the larger matrix with blocks $A$ and "
        r"$A^\top$.",
        _RIGHT,
        _EAGLE,
    ),
    Claim(
        "E8",
        _THE_UPDATE,
        r"Second-order convergence, with $\log\kappa$.",
        r"And at least $2.47\ln\kappa(A)$ layers before it sets in.",
        _RIGHT,
        _EAGLE,
    ),
    Claim(
        "R1",
        _RESTRICTED,
        r"Rank $r$ cuts a layer from $O(n^2d)$ to $O(nrd)$.",
        r"In operations; seconds are measured beside them.",
        _RIGHT,
        _SKETCHES,
        "operations as the formula says; at n = 240, r = n/8 a layer takes {layer_speedup_at_240} "
        "times less time",
    ),
    Claim(
        "R2",
        _RESTRICTED,
        r"Communication falls from $O(n^2)$ to $O(n)$.",
        r"To $(d + d')n'$ numbers a machine a round.",
        _RIGHT,
        _SKETCHES,
        "so counted, and 3 numbers at the start, in 1 process: {numbers_a_round_counted}; "
        "the same between 2 processes: {processes_agree}",
    ),
    Claim(
        "R3",
        _RESTRICTED,
        r"The diversity index is $\lambda_{\min}$ of the average projector.",
        r"The smallest *positive* eigenvalue.",
        _WRONG,
        _SKETCHES,
    ),
    Claim(
        "R4",
        _RESTRICTED,
        r"The diversity routine takes its projectors from QR.",
        r"A wide or rank-deficient block needs its true range, from an SVD.",
        _WRONG,
        _SKETCHES,
    ),
    Claim(
        "R5",
        _RESTRICTED,
        r"Theorem 2 has $O(\log(\kappa_{\max} + \alpha^{-1}\log(\dots)))$.",
        r"$O(\log\kappa_{\max} + \alpha^{-1}\log(\dots))$: the bracket is misplaced.",
        _WRONG,
        _SKETCHES,
    ),
    Claim(
        "R6",
        _RESTRICTED,
        r"Distributed, $\lVert D_l - D^*\rVert_F \le \varepsilon$ without noise.",
        r"Only without noise: with it the limit is not the pooled least squares.",
        _RIGHT,
        _SKETCHES,
        "with noise it misses the least squares: {noise_misses_least_squares}; digits right in %, "
        "direct, pooled, averaged, CG on conditioned blocks: {digits_right_percent}",
    ),
    Claim(
        "R7",
        _RESTRICTED,
        r"Learned sketches look like random orthogonal ones.",
        r"Compared with Haar-distributed sketches, and the two blocks with each other.",
        _OPEN,
        _TRAINING,
        "Kolmogorov–Smirnov at 5 %: {sketches_like_haar} layers pass; difference of the two blocks "
        "{sketch_difference}, published 0.28 (1 model); a layer writes where the last one reads",
    ),
    Claim(
        "X1",
        _EXPERIMENTS,
        r"A class that draws the prompts and cuts them into blocks.",
        r"An attribute is never set, the return statement is malformed, and its slices do not cut "
        r"$A$, $B$, $C$, $D$.",
        _WRONG,
        _TRAINING,
    ),
    Claim(
        "X2",
        _EXPERIMENTS,
        r"The prompts carry Gaussian noise of variance 0.01.",
        r"It sets a floor under the squared error, and stopping early regularises.",
        _RIGHT,
        _TRAINING,
        "best stopped after {best_layer_with_noise} layers; after 24 the error is "
        "{growth_of_the_error_after_it} times as large (1,024 prompts)",
    ),
    Claim(
        "X3",
        _EXPERIMENTS,
        r"In all three settings the squared error falls on the order of $10^{-50}$.",
        r"The paper says 10 to 50 *times*; no double-precision error is that small.",
        _WRONG,
        _TRAINING,
        "times smaller in the mean, without diverged prompts: unconstrained {error_ratio_mean}, "
        "rank-limited {error_ratio_mean_rank_limited}, distributed "
        "{error_ratio_mean_distributed} (one number a training)",
    ),
    Claim(
        "X4",
        _EXPERIMENTS,
        r"Steps: gradient descent $O(\kappa)$, CG $O(\sqrt\kappa)$, EAGLE $O(\log\kappa)$.",
        r"With $\kappa = \kappa(\Sigma)$; for CG it is an upper bound.",
        _RIGHT,
        _MEASURED,
    ),
    Claim(
        "X5",
        _EXPERIMENTS,
        r"At $\kappa = 10^4$ EAGLE takes 100 times fewer iterations than CG.",
        r"Iterations, not operations: one EAGLE step costs as much as $\min(d, n)$ steps of CG, "
        r"up to a constant.",
        _RIGHT,
        _MEASURED,
    ),
    Claim(
        "X6",
        _EXPERIMENTS,
        r"Rounds do not depend on the number of machines.",
        r"At equal $\alpha$.",
        _RIGHT,
        _SKETCHES,
        "at equal α rounds differ by a factor of at most {rounds_spread_over_machines}",
    ),
    Claim(
        "X7",
        _EXPERIMENTS,
        r"Rounds are linear in $1/\alpha$.",
        r"Once the machines' blocks are conditioned.",
        _RIGHT,
        _SKETCHES,
        "rounds = {rounds_times_alpha}/α, nearly; fitted power of 1/α: "
        "{rounds_power_of_inverse_alpha}",
    ),
    Claim(
        "X8",
        _EXPERIMENTS,
        r"At $\alpha \approx 0.1$ accelerated EAGLE is 10 times faster than gradient descent.",
        r"In the paper *accelerated* saves work, not rounds.",
        _OPEN,
        _SKETCHES,
        "at d = n = 1000, α = 0.1 gradient descent takes at least "
        "{gd_over_accelerated_rounds_at_least} times the rounds",
    ),
    Claim(
        "X9",
        _EXPERIMENTS,
        r"Iterations grow in proportion to $n/r$.",
        r"The exponent is fitted.",
        _OPEN,
        _SKETCHES,
        "fitted exponents for κ = 1e2 and 1e3: {layers_exponent} (10 seeds each)",
    ),
    Claim(
        "X10",
        _EXPERIMENTS,
        r"An iteration takes up to 7 times less time.",
        r"The paper's own figures give 4.2 times.",
        _OPEN,
        _SKETCHES,
        "{layer_speedup_at_240} times at n = 240, r = n/8; the published times give "
        "{layer_speedup_published}",
    ),
    Claim(
        "X11",
        _EXPERIMENTS,
        r"For $r \ge n/4$ EAGLE is 2.5 times faster than SGD.",
        r"It depends on the error that is asked for.",
        _OPEN,
        _SKETCHES,
        "at least {sgd_over_eagle_at_least} times in all cases with r ≥ n/4; SGD did not finish "
        "where κ ≥ 100",
    ),
    Claim(
        "X12",
        _EXPERIMENTS,
        r"The class draws from the distribution of the setting.",
        r"Its decay runs $\alpha^0, \dots, \alpha^{s-1}$ where the paper's runs "
        r"$\alpha^1, \dots, \alpha^s$: every prompt is $1/\alpha$ times too large.",
        _WRONG,
        _CLAIMS,
    ),
    Claim(
        "I1",
        _BIAS,
        r"One attention head a layer suffices.",
        r"One head trained alone; cutting heads out of a trained model is another matter.",
        _OPEN,
        _TRAINING,
        "error ratio of one head, over the best of 1, 2 and 8: {one_head_over_best} (one small "
        "training each)",
    ),
    Claim(
        "I2",
        _BIAS,
        r"Quantised and sparsified weights keep the performance.",
        r"How much they keep depends on the regime.",
        _OPEN,
        _TRAINING,
        "share of the error ratio kept, unconstrained, rank-limited, distributed: "
        "{ratio_kept_by_5_bits} with 5 bits, {ratio_kept_by_sparsifying} sparsified",
    ),
    Claim(
        "I3",
        _BIAS,
        r"$\alpha^1\alpha^2\lVert A\rVert_2$ is the same in all layers.",
        r"With $\lVert A\rVert_2^2$, as the units demand, and within a factor.",
        _OPEN,
        _TRAINING,
        "largest over smallest layer, unconstrained, rank-limited, distributed: "
        "{spread_with_the_norm} with the norm, {spread_with_its_square} with its square",
    ),
    Claim(
        "I4",
        _BIAS,
        r"The weights are block diagonal.",
        r"Judged by the share of their energy outside the blocks.",
        _OPEN,
        _TRAINING,
        "share of the energy off the blocks, unconstrained, rank-limited, distributed: "
        "{energy_off_the_blocks}; random weights have 0.18 to 0.38",
    ),
    Claim(
        "I5",
        _BIAS,
        r"The network adapts one algorithm to the regime.",
        r"Judged by how much of a layer's change EAGLE's update explains.",
        _OPEN,
        _TRAINING,
        "share of a layer's change that the update leaves unexplained, unconstrained, "
        "rank-limited, distributed: $A$, $B$ {unexplained_change_of_A_and_B}; $C$, $D$ "
        "{unexplained_change_of_C_and_D}",
    ),
    Claim(
        "I6",
        _BIAS,
        r"GD++ and EAGLE bring in second-order *momentum*.",
        r"Second-order *information*: a layer sees the state before it and nothing earlier, so "
        r"there is no momentum.",
        _WRONG,
        _CLAIMS,
    ),
)


def claim(label: str) -> Claim:
    """Return the claim of that label.

    Raises
    ------
    ValueError
        There is none.

    Examples
    --------
    >>> claim("E1").target
    'claim-e1'
    """
    for found in CLAIMS:
        if found.label == label:
            return found
    raise ValueError(
        f"there is no claim {label!r}; there are {', '.join(found.label for found in CLAIMS)}"
    )


def verdict(label: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the verdict that the deciding chapter recorded, or :data:`PENDING`.

    Parameters
    ----------
    label : str
        A claim's label.
    results : mapping
        What each chapter recorded: :func:`linear_icl.chapters.recorded`.

    Raises
    ------
    ValueError
        The label is unknown, or its chapter recorded a verdict that is not allowed.

    Examples
    --------
    >>> verdict("G1", {"03_gradient_descent": {"G1": "corrected"}})
    'corrected'
    """
    about = claim(label)
    found = results.get(about.chapter, {}).get(label, PENDING)
    if found not in (*about.allowed, PENDING):
        raise ValueError(
            f"chapter {about.chapter} recorded {found!r} for claim {label}: "
            f"expected {' or '.join(about.allowed)}"
        )
    return str(found)


def figure(label: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what was measured for a claim, in words, or nothing if that was not recorded.

    Examples
    --------
    >>> figure("P2", {"05_gd_plus_plus": {"layers_per_factor_e_of_kappa": 2.49,
    ...                                   "order_at_the_end": 2.0}})
    '2.49 layers for each factor of e in κ(A), theory 2.47; order at the end 2'
    >>> figure("E1", {"11_claims": {"E1_measured": "the shapes agree in 0 of 5 prompts"}})
    'the shapes agree in 0 of 5 prompts'
    """
    about = claim(label)
    if not about.figure:
        return str(results.get(_CLAIMS, {}).get(f"{label}_measured", ""))
    values = {
        name: chapters.show(value, "g") for name, value in results.get(about.chapter, {}).items()
    }
    try:
        return about.figure.format(**values)
    except KeyError:
        return ""


def counted(verdicts: Mapping[str, str]) -> dict[str, int]:
    """Count verdicts, in the order of :data:`VERDICTS`, with those that are pending at the end.

    Examples
    --------
    >>> counted({"E1": "corrected", "E2": "confirmed", "E3": "corrected"})
    {'confirmed': 1, 'confirmed in part': 0, 'corrected': 2, 'not reproduced': 0, 'pending': 0}
    """
    counts = Counter(verdicts.values())
    return {name: counts[name] for name in (*VERDICTS, PENDING)}
