"""What the operator sends as hot settings, the server takes; and where a spec says nothing both think of the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagemill import hot_settings
from pagemill_operator.hot_settings import config_map_data, settings_of
from pagemill_operator.resource import read
from pagemill_server.cli import parse
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine import hot
from tests.operator.golden_cases import CASES, EVERYTHING
from tests.operator.manifests import stored

OF_THE_USERS_OWN = "from pagemill_server.engine.policies.interface import Policy\nclass Shortest(Policy): ...\n"


def sent(**spec: Any) -> dict[str, Any]:
    return settings_of(read(stored(**spec)).spec)


def in_force(config: SchedulerConfig) -> str:
    return hot_settings.digest(hot.as_json(config))


def test_what_a_spec_leaves_out_is_the_servers_default() -> None:
    assert hot_settings.digest(sent()) == in_force(SchedulerConfig())


@pytest.mark.parametrize("spec", [EVERYTHING, {"schedulingPolicy": "deadline", "scheduling": {"ttftMs": 7}}])
def test_the_server_takes_them_and_has_the_digest_that_is_waited_for(spec: dict[str, Any]) -> None:
    config = hot.changed(SchedulerConfig(), sent(**spec))
    hot.check(config)
    assert in_force(config) == hot_settings.digest(sent(**spec)) != in_force(SchedulerConfig())


@pytest.mark.parametrize("name", CASES)
def test_the_file_of_a_deployment_is_one_that_the_server_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours.py").write_text(OF_THE_USERS_OWN)
    monkeypatch.syspath_prepend(tmp_path)
    spec = read(CASES[name]).spec
    ((file, text),) = config_map_data(spec).items()
    (tmp_path / file).write_text(text)
    config = parse(["org/name", "--settings-file", str(tmp_path / file)], {}).scheduler
    assert in_force(config) == hot_settings.digest(settings_of(spec))
