"""A search by Optuna's tree-structured Parzen estimator, over the interface of searches alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna

from pytest_gptune.routes import Route, RouteExpression
from pytest_gptune.search import RouteResult

_AT_ONCE = 4


class OptunaSearch:
    """Asks for a few routes at a time; an inaccurate route violates a constraint, a failed one has no value.

    Args:
        expression: the knobs and values to search.
        trials: the most routes.
        seed: of the sampler.
    """

    name = "optuna"

    def __init__(self, expression: RouteExpression, *, trials: int, seed: int) -> None:
        self._expression = expression
        self._trials = trials
        self._told: set[Route] = set()
        self._space: dict[str, Any] = {
            term.knob.name: optuna.distributions.CategoricalDistribution(term.available)
            for term in expression.terms
        }
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=20)
        self._study = optuna.create_study(sampler=sampler)

    def initial(self) -> tuple[Route, ...]:
        return (self._expression.default,)

    def propose(self, results: Sequence[RouteResult]) -> tuple[Route, ...]:
        known = {result.route for result in results}
        for result in results:
            if result.route not in self._told:
                self._told.add(result.route)
                self._tell(result)
        proposed: list[Route] = []
        # A sampler may ask for what is known; it is told once more, and asked again.
        for _ in range(50 * _AT_ONCE):
            if len(proposed) == _AT_ONCE or len(known) + len(proposed) >= self._trials:
                break
            trial = self._study.ask(self._space)
            route = Route(tuple(trial.params.items()))
            if route in known:
                value = next(_value(result) for result in results if result.route == route)
                self._study.tell(trial, value)
            elif route not in proposed:
                proposed.append(route)
        return tuple(proposed)

    def notes(self, results: Sequence[RouteResult]) -> tuple[str, ...]:
        return ()

    def _tell(self, result: RouteResult) -> None:
        self._study.add_trial(
            optuna.trial.create_trial(
                params=result.route.as_dict(), distributions=self._space, value=_value(result)
            )
        )


def _value(result: RouteResult) -> float:
    """Latency; of what may not win, far above any."""
    return 1e3 if not result.passed or result.latency_s is None else result.latency_s
