"""deploy/: image, units and manifests, and the image itself where it can be built."""

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lookupd.options import Options as LookupdOptions
from nsqadmin.options import Options as AdminOptions
from nsqd.config import flags
from nsqd.config.options import Options, check_options
from tests.support.daemon_process import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
VARIABLES = re.compile(r"\$\((\w+)\)")


def check_command_line(words: list[str]) -> None:
    """Fail if a daemon would refuse its flags."""
    program, *argv = [VARIABLES.sub("name", word) for word in words]
    if program == "nsqd":
        argv = [word for word in argv if not word.startswith("--data-path")]
        check_options(flags.load(Options, argv, program=program))
    elif program == "nsqlookupd":
        flags.load(LookupdOptions, argv, program=program)
    elif program == "nsqadmin":
        flags.load(AdminOptions, argv, program=program)
    else:
        assert program in PROJECT["project"]["scripts"], program


def read_containerfile() -> list[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_image_holds_every_package() -> None:
    copied = [value.split()[0] for name, value in read_containerfile() if name == "COPY"]

    assert {*PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]} <= {*copied}
    assert all((REPOSITORY / path).exists() for path in copied if not path.startswith("-"))


def test_the_image_runs_nsqd_as_a_user_and_ends_on_sigterm() -> None:
    instructions = dict(read_containerfile())

    assert instructions["USER"] == "10001:10001"
    assert instructions["STOPSIGNAL"] == "SIGTERM"
    assert "/ping" in instructions["HEALTHCHECK"]
    assert instructions["VOLUME"] == "/data"
    check_command_line(yaml.safe_load(instructions["ENTRYPOINT"]))


def find_builder() -> str | None:
    for name in ("podman", "docker"):
        if (
            shutil.which(name)
            and subprocess.run([name, "info"], capture_output=True).returncode == 0
        ):
            return name
    return None


@pytest.mark.timeout(600)
def test_the_image_is_built_and_answers() -> None:
    builder = find_builder()
    if builder is None:
        pytest.skip("neither podman nor a docker engine is here")
    run = ["run", "--rm", "--entrypoint", "nsqd", "nsqd-test", "--version"]

    subprocess.run(
        [builder, "build", "-t", "nsqd-test", "-f", "deploy/Containerfile", "."],
        cwd=REPOSITORY,
        check=True,
    )
    done = subprocess.run([builder, *run], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("nsqd v1.3.0")


def test_the_demo_cluster_is_whole() -> None:
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services: dict[str, Any] = document["services"]

    for name, service in services.items():
        assert set(service.get("depends_on", [])) <= set(services), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in document["volumes"] or (DEPLOY / source).exists(), source
        if name == "nsqadmin":
            check_command_line(service["entrypoint"])
        if name.startswith("nsqd"):
            check_command_line(["nsqd", *service["command"]])
            told = [word.split("=")[1] for word in service["command"] if "lookupd" in word]
            assert {address.split(":")[0] for address in told} <= set(services)


def read_containers() -> Iterator[dict[str, Any]]:
    for document in read_manifests():
        if document["kind"] == "StatefulSet":
            yield from document["spec"]["template"]["spec"]["containers"]


def read_manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes/nsqd.yaml").read_text()))


def test_the_manifests_start_daemons_with_flags_that_they_know() -> None:
    containers = {container["name"]: container for container in read_containers()}

    check_command_line(containers["nsqlookupd"]["command"])
    check_command_line(["nsqd", *containers["nsqd"]["args"]])
    hook = containers["nsqd"]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:3] == ["nsq", "node", "drain"]
    for container in containers.values():
        names = {port["name"] for port in container["ports"]}
        probes = [value for key, value in container.items() if key.endswith("Probe")]
        assert probes
        assert {probe["httpGet"]["port"] for probe in probes} <= names


def test_the_manifests_select_pods_that_there_are() -> None:
    documents = read_manifests()
    sets = [document for document in documents if document["kind"] == "StatefulSet"]
    labels = [document["spec"]["template"]["metadata"]["labels"] for document in sets]

    for document in documents:
        selector = document["spec"]["selector"]
        assert selector.get("matchLabels", selector) in labels, document["metadata"]["name"]
    services = {each["metadata"]["name"] for each in documents if each["kind"] == "Service"}
    assert {document["spec"]["serviceName"] for document in sets} <= services


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_the_units_start_daemons_with_flags_that_they_know(path: Path) -> None:
    unit = path.read_text().replace("%i", "10").replace("${NSQD_NODE_ID}", "10")
    [start] = re.findall(r"^ExecStart=/opt/nsqd/bin/(.*)$", unit, re.MULTILINE)

    check_command_line([word for word in shlex.split(start) if not word.startswith("$")])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize(
    "name", ["nsqadmin.service", "nsqd.service", "nsqd@10.service", "nsqlookupd.service"]
)
def test_systemd_understands_the_units(name: str, tmp_path: Path) -> None:
    source = DEPLOY / "systemd" / name.replace("@10", "@")
    text = re.sub(r"/opt/nsqd/bin/\w+", "/bin/true", source.read_text())
    (tmp_path / source.name).write_text(text.replace("User=nsqd", "User=root"))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
    )

    complaints = [
        line for line in done.stderr.splitlines() if str(tmp_path) in line or name in line
    ]
    assert not complaints
