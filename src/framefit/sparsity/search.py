"""The arms of a search: rules, the exact allocation, the chosen solver, and the same solver without the hardware."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.executor import Executor, Here, in_order
from framefit.core.files import read_record, write_record
from framefit.core.model import Model
from framefit.core.settings import Notify
from framefit.core.sparsity import SparsifySettings, Spent, Trial, Trials
from framefit.devices.host import cpuinfo
from framefit.errors import InputError
from framefit.sparsity.allocation import allocate, blind_budget, bound
from framefit.sparsity.database import Database, sparsity_levels
from framefit.sparsity.problem import Assignment, Problem, reward
from framefit.sparsity.solver import Evaluate, Limits, Solution, search
from framefit.sparsity.solvers import ONCE, make_solver
from framefit.sparsity.statistics import activation_zeros
from framefit.sparsity.subject import Subject
from framefit.training.campaign import Ledger
from framefit.training.data import Examples
from framefit.training.evaluate import evaluate, reestimate
from framefit.training.extra import one_thread, torch
from framefit.training.network import Network, load_state, to_model, to_torch


def quick() -> Any:
    """A context for forward passes that are only compared with each other: bfloat16 where hardware multiplies it.

    They take less than half the time there. Final figures are computed in float32.
    """
    amx = "amx_bf16" in cpuinfo(Path("/")).get("flags", "").split()
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=amx)


class Evaluator:
    """Accuracy of assignments on a subset of the validation data, by :func:`quick` forward passes only.

    Where it is sent to another process it makes a network of its own there.

    Args:
        model: the dense one.
        database: source of the weights.
        examples: validation data.
        calibration: inputs for the batch norm's statistics; float32, N x ...
    """

    def __init__(
        self, model: Model, database: Database, examples: Examples, calibration: npt.NDArray[np.float32]
    ) -> None:
        self._model, self._database, self._examples, self._calibration = model, database, examples, calibration

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_network"}

    @functools.cached_property
    def _network(self) -> Network:
        return to_torch(self._model)

    @property
    def images(self) -> int:
        """Forwarded in an evaluation."""
        return len(self._examples) + (len(self._calibration) if self._network.norms else 0)

    def __call__(self, assignment: Assignment) -> float:
        """Return top-1 accuracy, 0 to 1."""
        load_state(self._network, self._database.weights(assignment))
        with quick():
            if self._network.norms:
                reestimate(self._network, self._calibration)
            return evaluate(self._network, self._examples).top1


def evaluations(
    evaluator: Evaluator, executor: Executor, ledger: Ledger, assignments: Sequence[Assignment]
) -> Iterator[float]:
    """Accuracies of several assignments, in their order: here on all threads, elsewhere on one each."""
    if isinstance(executor, Here) or len(assignments) == 1:
        values: Iterator[float] = map(evaluator, assignments)
    else:
        values = in_order(executor.each(_evaluated, evaluator, assignments))
    for top1 in values:
        ledger.forwarded(evaluator.images, evaluations=1)
        yield top1


def _evaluated(evaluator: Evaluator, assignment: Assignment) -> float:
    """A task of an executor."""
    with one_thread():
        return evaluator(assignment)


_BATCH = 128  # inputs at once
_WRITE_S = 5.0  # least time between two writings of the trials
_PASSES = 2  # of fitting the budget to the cycles that the pruned network takes with its own activations


@dataclass(frozen=True)
class Arm:
    """The best assignment of one solver.

    Attributes:
        best: the solver's result.
        hardware: whether the solver knew the target's cycles.
    """

    best: Solution
    hardware: bool


@dataclass(frozen=True)
class Searched:
    """Results of all arms.

    Attributes:
        arms: in the order in which they ran.
        main: index of the arm whose model is used.
        additive_error, additive_bound: sum of errors of the exact allocation; lower bound of it within the budget.
        interrupted: whether the user ended the search.
    """

    arms: tuple[Arm, ...]
    main: int
    additive_error: float
    additive_bound: float
    interrupted: bool


class TrialLog:
    """Evaluations of a search, stored in its folder: none is made twice.

    Raises:
        InputError: the file belongs to another search.
    """

    def __init__(self, path: Path, key: str, ledger: Ledger) -> None:
        self._path, self._key, self._ledger = path, key, ledger
        self._trials: list[Trial] = []
        self._known: dict[tuple[int, ...], int] = {}
        self._written_s = 0.0
        self.arm = ""
        if path.exists():
            stored = read_record(path, Trials)
            if stored.key != key:
                raise InputError(
                    "evaluations of another model, other data or another pattern",
                    where=path,
                    remedy="give what the search began with, or start it again in another folder",
                )
            self._trials = list(stored.trials)
            self._known = {trial.levels: place for place, trial in enumerate(self._trials)}
        else:
            self.write()

    def evaluated(self, evaluate: Evaluate) -> Evaluate:
        """Wrap evaluations: stored results are looked up."""

        def look(assignments: Sequence[Assignment]) -> Iterator[float]:
            all_levels = [tuple(int(level) for level in assignment) for assignment in assignments]
            new = {levels: a for levels, a in zip(all_levels, assignments, strict=True) if levels not in self._known}
            values = evaluate(list(new.values()))
            for levels in all_levels:
                if levels in self._known:
                    self._catch_up(self._known[levels])
                    yield self._trials[self._known[levels]].top1
                    continue
                self._catch_up(len(self._trials) - 1)
                top1 = next(values)
                self._known[levels] = len(self._trials)
                spent = self._ledger.spent()
                images, seconds = spent.images_forwarded, spent.seconds
                self._trials.append(
                    Trial(arm=self.arm, levels=levels, top1=top1, images_forwarded=images, seconds=seconds)
                )
                if time.monotonic() - self._written_s > _WRITE_S:
                    self.write()
                yield top1

        return look

    def _catch_up(self, place: int) -> None:
        """Set the ledger to its state after a stored trial."""
        for trial in self._trials[place : place + 1]:
            known = Spent(images_forwarded=trial.images_forwarded, seconds=trial.seconds, evaluations=place + 1)
            self._ledger.catch_up(known)

    def write(self) -> None:
        """Write the trials; the ledger counts all of them."""
        self._catch_up(len(self._trials) - 1)
        self._written_s = time.monotonic()
        write_record(self._path, Trials(key=self._key, trials=tuple(self._trials)), force=True)

    @staticmethod
    def key_of(subject: Subject, settings: SparsifySettings) -> str:
        """Digest of everything that the folder's contents depend on."""
        data = [part.digest for part in (subject.data.train, subject.data.validation, subject.data.calibration)]
        parts = (subject.model.digest, subject.pattern, subject.of_m, settings.images, settings.seed, *data)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def make_problem(subject: Subject, database: Database, ledger: Ledger) -> Problem:
    """The problem that a database poses on the subject's target, with :func:`calibrated` errors."""
    cycles, fixed = subject.prices.table(database, subject.zeros)
    problem = Problem(
        layers=[entry.facts for entry in database.entries],
        levels=database.levels,
        cycles=cycles,
        errors=database.errors,
        fixed_cycles=fixed,
        evaluate=Evaluator(subject.model, database, subject.examples, subject.inputs),
    )
    return calibrated(problem, subject, database, ledger)


_CALIBRATED_AT = (0.3, 0.6)  # of the cycles that can be saved


def calibrated(problem: Problem, subject: Subject, database: Database, ledger: Ledger) -> Problem:
    """The same problem, its errors scaled to the divergence of whole pruned networks from the dense one.

    Sums of the layers' errors are estimates from gradients; two exact allocations show what they amount to.
    """
    task = subject.examples.task

    def answers(network: Network) -> Any:
        ledger.forwarded(len(subject.inputs))
        network.eval()
        with torch.inference_mode():
            batches = np.array_split(subject.inputs, -(-len(subject.inputs) // _BATCH))
            return torch.cat([task.answers(network, torch.from_numpy(batch)) for batch in batches])

    dense = answers(subject.network())
    factors = []
    for part in _CALIBRATED_AT:
        saved = int(part * (problem.dense_cycles - problem.least_cycles))
        assignment = allocate(problem, problem.dense_cycles - saved)
        expected = problem.error(assignment)
        pruned = answers(sparse_network(subject, database, assignment, ledger))
        measured = task.divergence(dense, pruned, task.heat(dense))
        if expected > 0 and measured > 0:
            factors.append(np.log(measured / expected))
    return replace(problem, errors=problem.errors * float(np.exp(np.mean(factors)))) if factors else problem


def check_reachable(subject: Subject, ratio: float) -> None:
    """Refuse cycles that no zeros reach, before a database is built; for channels only the database can tell.

    Raises:
        InfeasibleError: its message names the cycles that can be reached.
    """
    if subject.pattern == "channel":
        return
    weights = sum(layer.facts.parameters for layer in subject.layers)
    levels = np.asarray([0, 1 - subject.of_m[0] / subject.of_m[1]]) if subject.of_m else sparsity_levels(weights)
    table = np.tile(levels, (len(subject.layers), 1))
    cycles, fixed = subject.prices.of_zeros(table, subject.zeros)
    facts = [layer.facts for layer in subject.layers]
    bare = Problem(facts, table, cycles, table, fixed, evaluate=lambda _: 0.0)
    bare.check_budget(int(ratio * bare.dense_cycles))


def sparse_network(subject: Subject, database: Database, assignment: Assignment, ledger: Ledger) -> Network:
    """The network of an assignment, with new statistics of its batch norm; the dense one where nothing is removed."""
    if not assignment.any():
        return subject.network()
    return with_statistics(subject, to_torch(subject.prices.shrunk(database, assignment)), ledger)


def with_statistics(subject: Subject, network: Network, ledger: Ledger) -> Network:
    """The network itself, whose weights were changed, with new statistics of its batch norm."""
    if network.norms:
        reestimate(network, subject.inputs)
        ledger.forwarded(len(subject.inputs))
    return network


def own_zeros(subject: Subject, network: Network, ledger: Ledger) -> dict[str, float]:
    """Weight layer -> part of its input that is zero."""
    return activation_zeros(network, [layer.name for layer in subject.layers], subject.inputs, ledger)


def own_cycles(subject: Subject, network: Network, ledger: Ledger) -> int:
    """Cycles of a network with the zeros in its own weights and activations."""
    return subject.prices.total(to_model(network), own_zeros(subject, network, ledger))


def search_arms(
    subject: Subject,
    database: Database,
    problem: Problem,
    settings: SparsifySettings,
    ratio: float,
    ledger: Ledger,
    book: TrialLog,
    *,
    compare: bool,
    executor: Executor,
    notify: Notify,
) -> Searched | None:
    """Run the solvers within a part of the dense model's cycles.

    Returns:
        ``None``: interrupted before there was a result.

    Raises:
        InfeasibleError: no sparsity reaches the cycles.
    """
    target = int(ratio * subject.prices.total(subject.model, subject.zeros))
    budget = fitted_budget(subject, database, problem, target, ledger)
    assert isinstance(problem.evaluate, Evaluator)
    evaluate = book.evaluated(functools.partial(evaluations, problem.evaluate, executor, ledger))
    blind = problem.blind()
    plans: list[tuple[str, bool]] = [(settings.solver, True)]
    if compare:
        rules = [name for name in ONCE if name != settings.solver and (name != "lamp" or subject.pattern != "channel")]
        plans = [*((name, True) for name in rules), (settings.solver, True), (settings.solver, False)]
    weights = [subject.written.arrays[layer.weight] for layer in subject.layers]
    arms: list[Arm] = []
    interrupted = False
    try:
        for name, hardware in plans:
            posed, room = (problem, budget) if hardware else (blind, blind_budget(problem, budget))
            label = name if hardware else f"{name}, blind"
            book.arm = f"{label} at {ratio:.4f}"
            solver = make_solver(
                name,
                posed,
                room,
                settings.seed,
                evaluations=settings.episodes,
                weights=weights,
                kind=settings.reward,
                agreement=settings.agreement,
            )
            solution = search(
                posed,
                solver,
                Limits(settings.episodes, _until(settings, ledger, name, compare=compare, hardware=hardware)),
                ledger,
                kind=settings.reward,
                cycles=problem.total,
                most_cycles=budget,
                evaluate=evaluate,
                progress=functools.partial(_tell, notify, label, problem),
            )
            if solution is None:
                continue
            if problem.total(solution.assignment) <= budget:
                arms.append(Arm(solution, hardware))
            if solution.interrupted:
                interrupted = True
                break
    except KeyboardInterrupt:
        interrupted = True
    finally:
        book.write()
    if not arms:
        return None
    return Searched(
        arms=tuple(arms),
        main=_best(arms, problem, settings),
        additive_error=problem.error(allocate(problem, budget)),
        additive_bound=bound(problem, budget),
        interrupted=interrupted,
    )


def _best(arms: Sequence[Arm], problem: Problem, settings: SparsifySettings) -> int:
    """Index of the arm with the best reward that knew the hardware; of equal ones the chosen solver's."""

    def worth(index: int) -> tuple[bool, float, bool]:
        arm = arms[index]
        value = reward(settings.reward, arm.best.accuracy, problem.total(arm.best.assignment))
        return arm.hardware, value, arm.best.solver == settings.solver

    return max(range(len(arms)), key=worth)


def fitted_budget(subject: Subject, database: Database, problem: Problem, target: int, ledger: Ledger) -> int:
    """The budget for the tables that brings the pruned network to its target.

    Pruning changes the activations, and with them the cycles; channels of several groups multiply. The exact
    allocation shows by how much.
    """
    problem.check_budget(target)
    aim = target
    for _ in range(_PASSES):
        budget = _budget_for(subject, database, problem, aim)
        network = sparse_network(subject, database, allocate(problem, budget), ledger)
        real = own_cycles(subject, network, ledger)
        aim = max(min(int(aim * target / max(real, 1)), problem.dense_cycles), problem.least_cycles)
    return _budget_for(subject, database, problem, aim)


def _budget_for(subject: Subject, database: Database, problem: Problem, aim: int) -> int:
    """The largest budget whose exact allocation takes at most ``aim`` cycles; zeros in weights simply add up."""
    if database.pattern != "channel":
        return aim
    low, high = aim, problem.dense_cycles
    while high - low > problem.dense_cycles // 500:
        middle = (low + high) // 2
        real = subject.prices.total(subject.prices.shrunk(database, allocate(problem, middle)), subject.zeros)
        low, high = (middle, high) if real <= aim else (low, middle)
    return low


def _until(settings: SparsifySettings, ledger: Ledger, name: str, *, compare: bool, hardware: bool) -> float | None:
    """When an arm has to end: the main arm gets half of the remaining time if the one without hardware follows."""
    if settings.max_seconds is None or name in ONCE:
        return None
    left = max(settings.max_seconds - ledger.seconds, 0.0)
    return ledger.seconds + (left / 2 if compare and hardware else left)


def _tell(notify: Notify, label: str, problem: Problem, solution: Solution) -> None:
    ratio = problem.total(solution.assignment) / max(problem.dense_cycles, 1)
    best = f"best {100 * solution.accuracy:.2f} % at {ratio:.3f} of the cycles"
    notify(f"search ({label}): {solution.evaluations} evaluated, {best}")
