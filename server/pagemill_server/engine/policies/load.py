"""From `--scheduling-policy` to a policy: one of ours by its name, or a class of the user's by `package.module:Class`.

Raises PagemillError (InvalidConfiguration) with one line that says what to mend. Called by `cli` at the door and by the engine.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.estimate import Cost
from pagemill_server.engine.policies.deadline import Deadline
from pagemill_server.engine.policies.fair import Fair
from pagemill_server.engine.policies.guarded import Guarded
from pagemill_server.engine.policies.interface import Policy
from pagemill_server.engine.policies.priority import Priority
from pagemill_server.engine.sequence import Sequence

OURS: dict[str, type[Policy]] = {"fcfs": Policy, "priority": Priority, "fair": Fair, "deadline": Deadline}


def load(
    config: SchedulerConfig,
    clock: Callable[[], float] = time.monotonic,
    cost: Callable[[Sequence], Cost] | None = None,
) -> Policy:
    """The policy that `config.policy` names, guarded against its own failures; `clock` and `cost` are the engine's."""
    make = OURS.get(config.policy) or _class_at(config.policy)
    try:
        policy = make(config)
        if getattr(policy, "config", None) is None:
            policy.config = config  # its `__init__` has not called the base's
        policy.clock = clock
        if cost is not None:
            policy.cost = cost
    except (Exception, SystemExit) as error:
        raise _invalid(f'The scheduling policy "{config.policy}" could not be made: {_words(error)}') from error
    return policy if make is Policy else Guarded(policy)


def _class_at(path: str) -> type[Policy]:
    module_name, colon, class_name = path.partition(":")
    if not (colon and module_name and class_name.isidentifier()) or module_name.startswith("."):
        raise _invalid(
            f'There is no scheduling policy "{path}": it is {", ".join(OURS)}, or a class of your own as '
            '"package.module:Class".'
        )
    found = getattr(_module(module_name, path), class_name, None)
    if found is None:
        raise _invalid(f'The scheduling policy "{path}" was not found: {module_name} has no {class_name}.')
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise _invalid(f'The scheduling policy "{path}" must be a class derived from {Policy.__module__}:Policy.')
    return found


def _module(name: str, path: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _invalid(f'The scheduling policy "{path}" could not be imported: {_words(error)}') from error
        raise _invalid(
            f'The scheduling policy "{path}" was not found: there is no module {error.name}; PYTHONPATH must name the '
            "folder that it is in."
        ) from None
    except (Exception, SystemExit) as error:
        raise _invalid(f'The scheduling policy "{path}" could not be imported: {_words(error)}') from error


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _invalid(message: str) -> PagemillError:
    return PagemillError(FailureReason.INVALID_CONFIGURATION, message, {"schedulingPolicy": "fcfs"})
