"""The command ``linear-icl``: run chapters, solve one's own problem, train and unroll."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from linear_icl import __version__

EXIT_CODES = """Exit codes: 0 done; 1 the solve did not converge, or a chapter failed;
2 the command, a parameter or a file is not valid; 130 interrupted. Files are written whole or
not at all."""

app = typer.Typer(
    name="linear-icl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run the chapters of Linear ICL with other parameters, solve your own problem, or train "
    "and unroll a linear transformer.\n\n" + EXIT_CODES,
)


# Options of both commands that solve.
RankCut = Annotated[
    float | None, typer.Option(help="Singular values below rcond * largest count as 0.")
]
KeepUnconverged = Annotated[
    bool, typer.Option("--keep-unconverged", help="Write what did not converge, too.")
]


class Method(StrEnum):
    """The solvers that ``solve`` offers."""

    EAGLE = "eagle"
    CG = "cg"
    DIRECT = "direct"
    GD = "gd"
    GD_PLUS_PLUS = "gd++"


def _fail(message: str, code: int = 2) -> typer.Exit:
    print(f"linear-icl: {message}", file=sys.stderr)
    return typer.Exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"linear-icl {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


# ---------------------------------------------------------------------------------------------
# Chapters

_Chapter = Annotated[str, typer.Argument(help="A chapter: 6, 06, eagle or 06_eagle.")]
_Parameters = Annotated[
    list[str] | None,
    typer.Option("-p", "--parameter", metavar="NAME VALUE", help="A parameter; repeatable."),
]


@app.command("chapters")
def list_chapters(
    name: Annotated[str | None, typer.Argument(help="Show this chapter only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """List the chapters with their parameters: default, what is allowed, meaning."""
    from linear_icl import chapters

    try:
        names = list(chapters.CHAPTERS) if name is None else [chapters.find(name)]
    except ValueError as error:
        raise _fail(str(error)) from None
    if as_json:
        print(json.dumps({n: _described(chapters.CHAPTERS[n]) for n in names}, indent=2))
        return
    for chapter in names:
        print(f"{chapter}: {chapters.CHAPTERS[chapter].title}")
        for p in chapters.CHAPTERS[chapter].parameters:
            default = p.line.partition(" = ")[2].partition("  # ")[0]
            print(f"  {p.name:<10} {default:<14} {p.help} ({p.allowed})")


def _described(chapter: Any) -> dict[str, Any]:
    entries = {
        p.name: {
            "type": p.type.__name__,
            "default": p.default,
            "low": p.low,
            "high": p.high,
            "choices": list(p.choices) or None,
            "help": p.help,
        }
        for p in chapter.parameters
    }
    return {"title": chapter.title, "parameters": entries}


@app.command()
def run(
    chapter: _Chapter,
    output: Annotated[Path, typer.Option("-o", "--output", help="The notebook to write.")],
    parameter: _Parameters = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="Parameters in YAML; -p wins.")
    ] = None,
    html: Annotated[bool, typer.Option("--html", help="Write a web page, too.")] = False,
) -> None:
    """Run a chapter with other parameters.

    Example: linear-icl run 06_eagle -p kappa 1e6 -p n 500 -o out.ipynb

    Writes the executed notebook, and beside it a .json with parameters, results, versions and
    seconds. A run that fails writes nothing.
    """
    from linear_icl import chapters

    try:
        given = (_yaml(file) if file else {}) | dict(_pairs(parameter))
        report = chapters.run(chapter, output, given, html=html)
    except chapters.ChapterError as error:
        print(error.traceback, file=sys.stderr)
        raise _fail(str(error), 1) from None
    except (ValueError, OSError) as error:
        raise _fail(_words(error)) from None
    print(f"{report['chapter']}: {report['seconds']:.1f} s")
    for name, value in report["results"].items():
        print(f"  {name}: {value}")
    for suffix in (".ipynb", ".json", *((".html",) if html else ())):
        print(f"wrote {output.with_suffix(suffix)}")


@app.command()
def grid(
    chapter: _Chapter,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write to.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME V1,V2,…", help="Values; repeatable."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    again: Annotated[bool, typer.Option("--again", help="Run finished points again.")] = False,
) -> None:
    """Run a chapter at every combination of values.

    Example: linear-icl grid 06_eagle -p kappa 1e2,1e4 -p n 240,500 -o folder

    Each point gets its notebook and .json; CHAPTER_grid.csv and .json hold the table. Points
    that are there already are kept, and a point that fails does not stop the others.
    """
    from linear_icl import chapters

    try:
        values = {name: value.split(",") for name, value in _pairs(parameter)}
        rows = chapters.run_grid(chapter, values, output, workers=workers, resume=not again)
    except (ValueError, OSError) as error:
        raise _fail(_words(error)) from None
    for row in rows:
        seconds = "" if row["seconds"] is None else f"  {row['seconds']:.1f} s"
        print(f"{row['status']:<6}  {row['notebook']}{seconds}")
    print(f"wrote {output / chapters.find(chapter)}_grid.csv and .json")
    failed = [row for row in rows if row["status"] == "failed"]
    for row in failed:
        print(row["error"], file=sys.stderr)
    if failed:
        raise _fail(f"{len(failed)} of {len(rows)} runs failed", 1)


def _pairs(parameter: list[str] | None) -> list[tuple[str, str]]:
    """Split ``NAME=VALUE``, which is how :func:`main` hands on ``-p NAME VALUE``."""
    pairs: list[tuple[str, str]] = []
    for text in parameter or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"-p needs a name and a value, not {text!r}")
        if name in dict(pairs):
            raise ValueError(f"the parameter {name} is given twice")
        pairs.append((name, value))
    return pairs


def _yaml(file: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not YAML: {error}") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ValueError(f"{file} holds no parameters: expected lines such as 'kappa: 1e6'")
    return values


# ---------------------------------------------------------------------------------------------
# One's own problem


@app.command()
def solve(
    matrices: Annotated[
        list[Path],
        typer.Argument(metavar="A B [C]", help="Files: .npy, .npz, .csv or .mtx; FILE.npz:KEY."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    method: Annotated[Method, typer.Option(help="The solver.")] = Method.EAGLE,
    rtol: Annotated[float | None, typer.Option(help="Relative tolerance. Default 1e-8.")] = None,
    maxiter: Annotated[int | None, typer.Option(help="Most iterations.")] = None,
    rcond: RankCut = None,
    keep_unconverged: KeepUnconverged = False,
) -> None:
    """Solve for the missing block D of [A C; B D], or for the weights W with B = W A.

    Examples are columns: A is d x n, B is d' x n, C is d x n'. With C, D = W C is written,
    without it the least-squares weights W. A solve that does not converge writes nothing and
    ends with exit code 1.
    """
    from linear_icl import files

    try:
        _check_paths(matrices, output)
        arrays = [files.read_array(f, name) for f, name in zip(matrices, "ABC", strict=False)]
        options = {"rtol": rtol, "maxiter": maxiter, "rcond": rcond}
        options = {name: value for name, value in options.items() if value is not None}
        begin = time.perf_counter()
        solution, report = _solve(method, arrays, options)
        report["seconds"] = f"{time.perf_counter() - begin:.3g}"
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
        raise _fail(_words(error)) from None
    converged = report.pop("converged")
    shapes = ", ".join(
        f"{name} {'x'.join(map(str, array.shape))}"
        for name, array in zip("ABC", arrays, strict=False)
    )
    for name, value in ({"method": method.value, "shapes": shapes} | report).items():
        print(f"{name:<17} {value}")
    if not converged and not keep_unconverged:
        raise _fail(f"not converged, so {output} was not written (--keep-unconverged)", 1)
    try:
        files.write_array(output, solution)
    except (ValueError, OSError) as error:
        raise _fail(_words(error)) from None
    if not converged:
        raise typer.Exit(1)


def _check_paths(matrices: Sequence[Path], output: Path) -> None:
    from linear_icl import files

    if len(matrices) not in (2, 3):
        raise ValueError(f"solve takes the files A B or A B C, not {len(matrices)} files")
    # "data.npz:A" names an array in the file data.npz.
    target = _file_of(output)
    if target.suffix.lower() not in files.EXTENSIONS:
        known = ", ".join(files.EXTENSIONS)
        raise ValueError(f"the output {str(output)!r} must end in one of {known}")
    for name, matrix in zip("ABC", matrices, strict=False):
        if _file_of(matrix).resolve() == target.resolve():
            raise ValueError(f"the output {str(output)!r} would replace the input {name}")


def _file_of(path: Path) -> Path:
    head, found, _ = str(path).rpartition(".npz:")
    return Path(head + ".npz") if found else path


def _solve(
    method: Method, arrays: list[Any], options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the solution, D or W, and the lines of the summary."""
    from linear_icl import solvers

    A, B, C = [*arrays, None][:3]
    used = {"rcond"} if method is Method.DIRECT else {"rtol", "maxiter"}
    used |= {"rcond"} if method in (Method.EAGLE, Method.GD_PLUS_PLUS) else set()
    for name in options.keys() - used:
        raise ValueError(f"--{name} has no meaning for --method {method}")
    if method is Method.EAGLE:
        result = solvers.eagle(A, B, C, **options)
    elif method is Method.GD_PLUS_PLUS:
        result = solvers.gd_plus_plus(A, B, C, **options)
    elif method is Method.DIRECT:
        result = solvers.least_squares(A, B, method="svd", **options)
    elif method is Method.CG:
        result = solvers.cgls(A, B, **options)
    else:
        result = solvers.gradient_descent(A, B, **options)
    solution = result.D
    if solution is None:
        solution = result.W if C is None else result.W @ C
    rank, kappa = _conditioning(A, options.get("rcond"))
    report = {
        "converged": result.converged,
        "status": result.message,
        "iterations": _span(result.iterations),
        "residual": _residual(A, B, result),
        "rank": rank if result.rank is None else _span(result.rank),
        "condition number": kappa,
    }
    return solution, report


def _residual(A: Any, B: Any, result: Any) -> str:
    """Say how well the weights fit, or, where there are none, what the solver watched last."""
    import numpy as np

    if result.W is None:
        members = result.history.reshape(len(result.history), -1).T  # NaN once it has stopped
        last = max((m[~np.isnan(m)][-1] for m in members), default=0.0)
        return f"{last:.3g} (last relative change of D)"
    with np.errstate(all="ignore"):
        A, B, W = (np.asarray(a, dtype=np.float64) for a in (A, B, result.W))
        misfit = B - W @ A
        size = np.linalg.norm(B) or 1.0
        gradient = np.linalg.norm(misfit @ A.mT) / (np.linalg.norm(B @ A.mT) or 1.0)
    return f"{np.linalg.norm(misfit) / size:.3g} of B; normal equations {gradient:.3g}"


def _conditioning(A: Any, rcond: float | None) -> tuple[str, str]:
    """Return numerical rank and condition number of A as text, from its singular values."""
    import numpy as np

    if min(A.shape[-2:]) > 3000:
        return "not computed", "not computed (min(d, n) > 3000)"
    values = np.linalg.svd(np.asarray(A, dtype=np.float64), compute_uv=False)
    cut = max(A.shape[-2:]) * np.finfo(A.dtype).eps if rcond is None else rcond
    kept = values > cut * values.max(axis=-1, initial=0.0, keepdims=True)
    smallest = np.min(values, axis=-1, where=kept, initial=np.inf)
    kappa = values.max(axis=-1, initial=0.0) / smallest
    return _span(kept.sum(axis=-1)), f"{kappa.max(initial=0.0):.3g}"


def _span(values: Any) -> str:
    """Write a number, or the range of numbers that a batch has."""
    import numpy as np

    low, high = np.min(values), np.max(values)
    return str(low) if low == high else f"{low} to {high}"


_Pattern = Annotated[
    str,
    typer.Option(
        metavar="FILES",
        help="A pattern with one file a worker ('A_*.npy' in sorted order, or 'A_{rank}.npy'), "
        "or one file whose columns the workers share.",
    ),
]


@app.command()
def distributed(
    parts: _Pattern,
    labels: _Pattern,
    output: Annotated[str, typer.Option("-o", "--output", help="The file to write.")],
    query: Annotated[
        str | None, typer.Argument(metavar="[C]", help="The query; without it, find weights.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes. Default: one a file, or a core.")
    ] = None,
    method: Annotated[str, typer.Option(help="The method of eagle_distributed.")] = "cg",
    rtol: Annotated[float, typer.Option(help="Relative tolerance.")] = 1e-8,
    maxiter: Annotated[int | None, typer.Option(help="Most rounds.")] = None,
    rcond: RankCut = None,
    keep_unconverged: KeepUnconverged = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep the state of the rounds here.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Rounds between two checkpoints.")] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a lost or silent worker ends the job.")
    ] = 30.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads a worker. Default: the cores, shared.")
    ] = None,
) -> None:
    """Solve a problem whose examples are split over processes or machines.

    Example: linear-icl distributed --parts 'A_*.npy' --labels 'B_*.npy' C.npy -o D.npy

    Each worker reads its own examples only; what concerns the query is all that is sent. Started
    by torchrun, the command is one of its workers. When one fails, all end, and the message says
    which one and why.
    """
    from linear_icl.solvers import _process_group

    job = _process_group.Job(
        parts=parts,
        labels=labels,
        query=query,
        output=output,
        method=method,
        rtol=rtol,
        maxiter=maxiter,
        rcond=rcond,
        keep_unconverged=keep_unconverged,
        checkpoint=checkpoint,
        every=every,
        resume=resume,
        timeout=timeout,
        threads=threads,
    )
    try:
        code = _process_group.start(job, workers)
    except (ValueError, OSError) as error:
        raise _fail(_words(error)) from None
    raise typer.Exit(code)


# ---------------------------------------------------------------------------------------------
# Transformers


class Regime(StrEnum):
    """The compute regimes that ``train`` offers."""

    UNCONSTRAINED = "unconstrained"
    RANK_LIMITED = "rank_limited"
    DISTRIBUTED = "distributed"


class Task(StrEnum):
    """What ``train`` asks the model for: the block D of a completion, or the weights W*."""

    COMPLETION = "completion"
    ESTIMATION = "estimation"


@app.command()
def train(
    regime: Annotated[Regime, typer.Argument(help="The compute regime.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder of the run.")],
    seed: Annotated[int, typer.Option(min=0, help="Seeds weights and prompts.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Adam steps.")] = 20_000,
    noise: Annotated[float, typer.Option(min=0.0, help="Variance of the noise.")] = 0.0,
    task: Annotated[
        Task, typer.Option(help="Ask for the missing block, or for the weights (C = I).")
    ] = Task.COMPLETION,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run there.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Train a linear transformer by the published recipe.

    Example: linear-icl train unconstrained --seed 0 --steps 20000 -o runs/u0

    Writes weights, optimiser state and manifest.json every 1000 steps. Stopped at any moment, it
    loses at most those; --resume goes on bit for bit.
    """
    from linear_icl.transformers import training

    try:
        model = training.PUBLISHED[regime.value]
        if task is Task.ESTIMATION:
            model = dataclasses.replace(model, n_query=model.d)
        config = training.TrainingConfig(
            model=model, seed=seed, steps=steps, noise=noise, task=task.value
        )
        there = resume and (output / "manifest.json").exists()
        done = training.read_manifest(output)["step"] if there else 0
        training.train(config, output, resume=resume, device=device)
        manifest = training.read_manifest(output)
    except FloatingPointError as error:
        raise _fail(str(error), 1) from None
    except (ValueError, OSError) as error:
        raise _fail(_words(error)) from None
    last = manifest["history"][-1]
    print(f"{regime}, seed {seed}: {manifest['step']} steps, {manifest['seconds']:.0f} s")
    print(f"  squared error: median {last['median']:.3g}, mean {last['mean']:.3g}")
    print(f"  predicting 0: mean {last['zero']:.3g}")
    print(f"  prompts that diverged: {last['diverged']:.2%} of {last['prompts']}", end="")
    print(" (each of them can make the mean as large as it likes)" if last["diverged"] else "")
    if done >= steps:
        print(f"nothing to do: {output} has {done} steps already")
    else:
        print(f"wrote {output}")


@app.command()
def unroll(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a shipped model's name.")],
    figures: Annotated[
        Path | None, typer.Option(help="Write figures (PNG) to this folder, too.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Fresh prompts to compare on.")] = 4096,
) -> None:
    """Read a trained transformer as an algorithm and compare the two layer by layer.

    Example: linear-icl unroll runs/u0 --figures runs/u0-figures

    With the package come REGIME-seed0 to REGIME-seed4 and REGIME-seed0-noise0.01 for the three
    regimes of ``train``, estimation-seed0 and estimation-seed0-rank5.
    """
    from linear_icl.transformers import training, unrolling

    try:
        if not run.exists():
            training.shipped(str(run))  # says which ones there are, if this is none of them
            run = training.CHECKPOINTS / run
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
        found = unrolling.unroll(run, prompts=prompts)
        print(found.report())
        if figures is not None:
            for name, figure in found.figures().items():
                # The dot keeps a half-written picture out of sight; renamed, it is whole.
                temporary = figures / f".{name}.png"
                figure.savefig(temporary)
                temporary.replace(figures / f"{name}.png")
                print(f"wrote {figures / name}.png")
    except (ValueError, OSError) as error:
        raise _fail(_words(error)) from None


# ---------------------------------------------------------------------------------------------
# The command


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__


def _joined(arguments: Sequence[str]) -> list[str]:
    """Turn ``-p NAME VALUE`` into ``-p NAME=VALUE``, as an option here takes one value."""
    joined, rest = [], list(arguments)
    while rest:
        joined.append(rest.pop(0))
        if joined[-1] in ("-p", "--parameter") and rest:
            name = rest.pop(0)
            # A value such as -3 begins with a dash, too, but an option has a letter after it.
            alone = "=" in name or not rest or re.match(r"--?[a-zA-Z]", rest[0])
            joined.append(name if alone else f"{name}={rest.pop(0)}")
    return joined


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code: Any = app(args=_joined(given), prog_name="linear-icl", standalone_mode=True)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as left:
        code = left.code
    if code == 130:
        print("linear-icl: interrupted", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
