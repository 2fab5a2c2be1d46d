"""The unit files against systemd itself where it is, the Dockerfile against rules of our own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.node.cli.service import UNITS, unit_text
from ftnode.node.owner.systemd import Supervisor
from tests.node.cli.cli_runner import Seen

ROOT = Path(__file__).parents[3]
HARDENED = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "ProtectHome": "yes",
    "PrivateTmp": "yes", "ProtectKernelTunables": "yes", "ProtectKernelModules": "yes", "ProtectControlGroups": "yes",
    "RestrictNamespaces": "yes", "LockPersonality": "yes", "SystemCallFilter": "@system-service", "DynamicUser": "yes",
}  # fmt: skip
SECRET = re.compile(r"pass(word)?|secret|token|credential|private_?key|api_?key", re.IGNORECASE)


def settings_of(unit: str) -> dict[str, str]:
    lines = [line for line in unit_text(unit).splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_printed(ftnode: Callable[..., Seen], unit: str) -> None:
    seen = ftnode("service", unit)
    assert seen.code == 0 and seen.out == unit_text(unit)


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_tells_systemd_how_we_begin_live_and_end(unit: str) -> None:
    found = settings_of(unit)
    assert (found["Type"], found["NotifyAccess"], found["KillMode"]) == ("notify", "main", "mixed")
    seconds = {"2min": 120_000_000}[found["WatchdogSec"]]
    assert Supervisor({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": str(seconds)}).watchdog_seconds == 120
    assert found["RestartPreventExitStatus"].split() == in_vain()
    assert found["StartLimitIntervalSec"] == "0", "five failures, and a service without network would be given up"


def in_vain() -> list[str]:
    """Exit codes after which the same start would be in vain, as the page of errors says."""
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    (sentence,) = re.findall(r"start again after all but ([\d, and]+)\.", page)
    assert set(re.findall(r"\d+", sentence)) == set(re.findall(r"(?m)^\| (\d+) \|.*\| in vain \|$", page))
    return re.findall(r"\d+", sentence)


@pytest.mark.parametrize("unit", ["volunteer", "user"])
def test_a_volunteer_sees_who_else_computes_on_the_gpu(unit: str) -> None:
    """GpuWatch takes a process that /proc does not show for one of another container, and lets it be."""
    found = settings_of(unit)
    assert found.get("ProtectProc", "default") == "default" and found.get("ProcSubset", "all") == "all"
    assert found.get("PrivatePIDs", "no") == "no"
    for path in ("Dockerfile", "docs/how-to/run-as-a-service.md"):
        installs = re.findall(r"(?m)^.*\bpip install\b.*$", (ROOT / path).read_text())
        assert installs and all(".[gpu]" in line for line in installs), path


def test_the_page_makes_the_command_before_it_types_it() -> None:
    """Else `ftnode service volunteer | sudo tee` leaves an empty unit, and sudo finds no ftnode."""
    page = (ROOT / "docs" / "how-to" / "run-as-a-service.md").read_text()
    link = "sudo ln -sf /opt/ftnode/bin/ftnode /usr/local/bin/ftnode"
    sections = {text.partition("\n")[0]: text for text in page.split("\n## ") if "\n```sh\n" in text}
    volunteer, user, point = (sections[name] for name in list(sections)[:3])
    assert before(volunteer, "/opt/ftnode/bin/pip install", link, "\nftnode service volunteer", "\nsudo ftnode ")
    assert before(
        user, "~/.local/opt/ftnode/bin/pip install", "ln -sf ~/.local/opt/ftnode", "~/.local/bin/ftnode service"
    )
    assert before(point, "(#a-volunteer-of-the-system)", "\nftnode service bootstrap")
    for unit in ("volunteer", "bootstrap"):
        assert settings_of(unit)["ExecStart"].startswith("/opt/ftnode/bin/ftnode ")
    assert settings_of("user")["ExecStart"].startswith("/usr/bin/env ftnode "), "which looks at the PATH of join.env"
    assert "/ftnode/join.env" in settings_of("user")["EnvironmentFile"]


def before(text: str, *parts: str) -> bool:
    """Whether they come in this order, all of them."""
    places = [text.index(part) for part in parts]
    return places == sorted(places)


def test_a_volunteer_may_use_the_graphics_card_whatever_its_driver_is_called() -> None:
    """Each is all of a name in /proc/devices: char-nvidia is not char-nvidia-frontend."""
    allowed = re.findall(r"(?m)^DeviceAllow=char-(\S+) rw$", unit_text("volunteer"))
    assert set(allowed) == {"nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-caps"}


@pytest.mark.parametrize("unit", ["volunteer", "bootstrap"])
def test_a_service_of_the_system_is_shut_in(unit: str) -> None:
    found = settings_of(unit)
    assert {name: found.get(name) for name in HARDENED} == HARDENED


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_a_unit(unit: str, tmp_path: Path) -> None:
    """With a program that is there instead of ftnode, which may be installed anywhere."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed here")
    path = tmp_path / UNITS[unit]
    path.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", unit_text(unit)))
    scope = "--user" if unit == "user" else "--system"
    done = subprocess.run([analyze, "verify", scope, "--man=no", str(path)], capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if path.name in line]
    assert ours == []
    if unit != "user":
        assert done.returncode == 0, done.stderr


def test_systemd_finds_what_is_wrong_with_a_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed here")
    path = tmp_path / "ftnode.service"
    path.write_text(unit_text("volunteer").replace("ProtectSystem=strict", "ProtectSystem=perhaps"))
    done = subprocess.run([analyze, "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60)
    assert "ftnode.service:38: Failed to parse" in done.stderr


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, rest) of a Dockerfile, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(words[0].upper(), " ".join(words[1:])) for words in (line.split() for line in joined)]


def faults(text: str) -> list[str]:
    """What is wrong with a Dockerfile of ours: an image that is not pinned, root, secrets, shell forms, no health."""
    found, stages, arguments = [], dict[str, list[tuple[str, str]]](), dict[str, str]()
    stage = ""
    for word, rest in instructions(text):
        if word == "ARG" and "=" in rest:
            arguments[rest.split("=", 1)[0]] = rest.split("=", 1)[1]
        if word in ("ARG", "ENV") and SECRET.search(rest):
            found.append(f"a secret: {rest}")
        if word == "FROM":
            image, _, stage = rest.partition(" AS ")
            image = re.sub(r"\$\{(\w+)\}", lambda name: arguments.get(name[1], ""), image)
            if image not in stages and not re.search(r":\d+\.\d+\.\d+|@sha256:[0-9a-f]{64}", image):
                found.append(f"not pinned: {image}")
            stages[stage] = list(stages.get(image, []))
        elif stage:
            stages[stage].append((word, rest))
        if word in ("CMD", "ENTRYPOINT") and not _is_words(rest):
            found.append(f"shell form: {word} {rest}")
        if word == "ADD":
            found.append(f"ADD may unpack and fetch: {rest}")
        if word == "RUN" and "apt-get install" in rest and "--no-install-recommends" not in rest:
            found.append("apt-get installs more than it is asked for")
    for target in ("volunteer", "bootstrap"):
        steps = stages.get(target, [])
        users = [rest for word, rest in steps if word == "USER"]
        if not users or users[-1].split(":")[0] in ("root", "0"):
            found.append(f"{target} runs as root")
        checks = [rest for word, rest in steps if word == "HEALTHCHECK"]
        if not checks or not _is_words(checks[-1].partition("CMD ")[2]):
            found.append(f"{target} has no health check in exec form")
    return found


def _is_words(text: str) -> bool:
    try:
        words = json.loads(text)
    except ValueError:
        return False
    return isinstance(words, list) and all(isinstance(word, str) for word in words)


def test_the_dockerfile_keeps_the_rules() -> None:
    assert faults((ROOT / "Dockerfile").read_text()) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("USER 10001", "USER root", "runs as root"),
        ("USER 10001\n", "", "runs as root"),
        ("3.11.11-slim-bookworm", "3.11-slim", "not pinned"),
        ('ENTRYPOINT ["ftnode"]', "ENTRYPOINT ftnode", "shell form"),
        ("HEALTHCHECK", "LABEL", "no health check"),
        ('ARG PIP_ARGUMENTS=""', 'ARG API_TOKEN=""', "a secret"),
        ("COPY lab lab", "ADD lab lab", "ADD"),
        (" --no-install-recommends", "", "more than it is asked for"),
    ],
)  # fmt: skip
def test_a_planted_fault_of_the_dockerfile_is_found(before: str, after: str, fault: str) -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert before in text
    assert any(fault in found for found in faults(text.replace(before, after)))


def test_what_the_image_runs_are_commands_of_ours(ftnode: Callable[..., Seen]) -> None:
    """With --help, so that nothing starts; an unknown option would be refused before."""
    steps = instructions((ROOT / "Dockerfile").read_text())
    for word, rest in steps:
        if word in ("CMD", "HEALTHCHECK"):
            words = json.loads(rest.partition("CMD ")[2] or rest)
            assert ftnode(*[word for word in words if word != "ftnode"], "--help").code == 0, words


def test_the_image_gets_what_the_build_needs_and_no_more() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for word, rest in instructions((ROOT / "Dockerfile").read_text())
        if word == "COPY" and "--from" not in rest
        for source in shlex.split(rest)[:-1]
    }
    assert copied == kept
