"""The one way in which policies are asked: whatever one does wrong becomes a `PolicyFailure` that says it."""

from collections.abc import Callable
from math import isfinite
from typing import Any, Final, ParamSpec, TypeVar, get_args

from agents.policies.failure import PolicyFailure
from agents.policies.limits import broken, limited
from agents.policies.own import is_own_frame
from agents.policies.view import Cache, Config, Decision, Policy, Regime, Request, Route, State, View

P = ParamSpec("P")
R = TypeVar("R")

ROUTES, CACHES, REGIMES = get_args(Route), get_args(Cache), get_args(Regime)
MOST_TOKENS: Final = 2**53
LONGEST_REASON: Final = 1000


class NobodyThere(PolicyFailure):
    """It sends a request to a cluster in which nobody does prefill."""

    def __init__(self, route: Route) -> None:
        super().__init__(f"route() answers {route}, where no instance does prefill")
        self.route = route


class Guarded:
    """A policy, asked with care. Of one that is the user's `own` the executed lines are counted, too.

    Types are exact: a number of numpy's would not reach the record.
    """

    def __init__(self, policy: Policy, *, own: bool = False) -> None:
        self._policy, self._own = policy, own

    def start(self, config: Config) -> State:
        """The first state.

        Raises:
            ValueError: the policy refuses its parameters.
            PolicyFailure: it breaks.
        """
        try:
            state = self._call(self._policy.start, config)
        except (PolicyFailure, ValueError):
            raise
        except BaseException as error:
            raise PolicyFailure(broken("start()", error, is_own_frame)) from error
        return _checked_state("start()", config, state)

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:
        """Place one request; PolicyFailure."""
        try:
            decision = self._call(self._policy.route, config, state, view, request)
        except PolicyFailure:
            raise
        except BaseException as error:
            raise PolicyFailure(broken("route()", error, is_own_frame)) from error
        return _checked_decision(config, state, view, decision)

    def update(self, config: Config, state: State, view: View) -> State:
        """The next state; PolicyFailure."""
        try:
            after = self._call(self._policy.update, config, state, view)
        except PolicyFailure:
            raise
        except BaseException as error:
            raise PolicyFailure(broken("update()", error, is_own_frame)) from error
        return _checked_state("update()", config, after)

    def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return limited(function, *args, **kwargs) if self._own else function(*args, **kwargs)


def _checked_decision(config: Config, state: State, view: View, decision: Any) -> Decision:
    if type(decision) is not Decision:
        raise PolicyFailure(f"route() answers {_shown(decision)} instead of a Decision")
    if not _is_word(decision.route, ROUTES):
        raise _wrong("route()", "route", decision.route, " or ".join(ROUTES))
    _check_tokens("route()", decision.threshold_tokens)
    _check_reason("route()", decision.reason)
    if not _is_word(decision.cache, CACHES):
        raise _wrong("route()", "cache", decision.cache, " or ".join(CACHES))
    if type(decision.compress) is not bool:
        raise _wrong("route()", "compress", decision.compress, "True or False")
    order_s = decision.order_s
    if order_s is not None and not _is_number(order_s):
        raise _wrong("route()", "order_s", order_s, "None or a number of seconds")
    system = config.system
    if decision.route == "prfaas" and not system.n_prfaas:
        raise NobodyThere("prfaas")
    if decision.route == "pd" and not (system.n_p or view.n_p or view.converting or state.prefill_instances):
        raise NobodyThere("pd")
    if decision.compress and system.compression is None:
        raise PolicyFailure("route() compresses, and the transport has no compression")
    return decision


def _checked_state(what: str, config: Config, state: Any) -> State:
    if type(state) is not State:
        raise PolicyFailure(f"{what} answers {_shown(state)} instead of a State")
    _check_tokens(what, state.threshold_tokens)
    _check_reason(what, state.reason)
    capacity_bps = state.capacity_bps
    if capacity_bps is not None and not (_is_number(capacity_bps) and capacity_bps >= 0):
        raise _wrong(what, "capacity_bps", capacity_bps, "None or a number of bits per second, 0 or more")
    if not _is_word(state.regime, REGIMES):
        raise _wrong(what, "regime", state.regime, " or ".join(REGIMES))
    wanted, there = state.prefill_instances, config.system.n_p + config.system.n_d
    if wanted is not None and not (type(wanted) is int and 0 <= wanted <= there):
        raise _wrong(what, "prefill_instances", wanted, f"None or 0 to {there}, the instances in PD")
    return state


def _check_tokens(what: str, tokens: Any) -> None:
    if type(tokens) is not int or not 0 <= tokens <= MOST_TOKENS:
        raise _wrong(what, "threshold_tokens", tokens, "a whole number (int), 0 or more")


def _check_reason(what: str, reason: Any) -> None:
    if type(reason) is not str:
        raise _wrong(what, "reason", reason, "a text (str)")
    if len(reason) > LONGEST_REASON:
        raise PolicyFailure(
            f"{what} gives a reason of {len(reason)} characters, not {LONGEST_REASON} at most"
        )
    if not reason.isascii():
        try:
            reason.encode()
        except UnicodeEncodeError:
            raise _wrong(what, "reason", reason, "a text that UTF-8 can encode") from None


def _is_word(value: Any, allowed: tuple[str, ...]) -> bool:
    return type(value) is str and value in allowed


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and isfinite(value)


def _wrong(what: str, field: str, value: Any, allowed: str) -> PolicyFailure:
    return PolicyFailure(f"{what} answers {field} {_shown(value)}, not {allowed}")


def _shown(value: Any) -> str:
    """A value and its type, shortly, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's class may do anything
        text = "?"
    shortened = text if len(text) <= 100 else f"{text[:100]}..."  # noqa: PLR2004 - a line's length
    return f"{shortened.encode('utf-8', 'backslashreplace').decode()} ({type(value).__name__})"
