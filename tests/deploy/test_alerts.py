"""docs/alerts.yml: the rules fire when they should, and each has its section in the runbook."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.daemon_process import REPOSITORY

DOCS = REPOSITORY / "docs"
RULES = DOCS / "alerts.yml"


def read_alerts() -> dict[str, dict[str, object]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not here"
)
@pytest.mark.parametrize(
    "command", [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]]
)
def test_promtool_is_content(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], cwd=DOCS, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_played() -> None:
    groups = yaml.safe_load((DOCS / "alerts_test.yml").read_text())["tests"]

    played = {
        case["alertname"]
        for group in groups
        for case in group["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert played == set(read_alerts())


def test_every_alert_has_its_section_in_the_runbook() -> None:
    sections = re.findall(r"^## (Nsq\w+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)

    assert sections == list(read_alerts())
    for name, rule in read_alerts().items():
        annotations = rule["annotations"]
        assert isinstance(annotations, dict)
        assert annotations["runbook"] == f"docs/runbook.md#{name.lower()}"


@pytest.mark.parametrize("page", ["runbook.md", "scaling.md", "operations.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", (DOCS / page).read_text()):
        assert not target or Path(DOCS / target).exists(), target
