"""The image, the compose file and the CI script, as far as they can be tested without an engine."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from celery.bin.celery import celery

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)


def known_variables() -> set[str]:
    return set(re.findall(r"^# ([A-Z_]+)=", (ROOT / ".env.example").read_text(), flags=re.M))


def command_of(service: str) -> list[str]:
    return SERVICES[service].get("command") or image_command()


def image_command() -> list[str]:
    line = re.findall(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), flags=re.M)[-1]
    return json.loads(line)


def test_the_compose_file_starts_the_whole_full_size_shape():
    assert set(SERVICES) == {"postgres", "redis", "migrate", "web", "worker", "beat"}


@pytest.mark.parametrize("service", OURS)
def test_a_service_sets_only_variables_that_the_settings_know(service: str):
    assert set(SERVICES[service]["environment"]) <= known_variables()


@pytest.mark.parametrize("service", OURS)
def test_what_env_file_says_reaches_a_service(service: str):
    told = SERVICES[service]["environment"]
    # The image's own folder, and what only the other shape or a developer asks for.
    elsewhere = {"DATA_DIR", "DATABASE_POOL_SIZE", "CONN_MAX_AGE", "CELERY_BROKER_URL", "DEBUG"}

    assert set(told) == known_variables() - elsewhere
    fixed = {name for name, value in told.items() if f"${{{name}" not in str(value)}
    assert fixed == {"DATABASE_URL", "DATABASE_POOL", "REDIS_URL"}


def test_the_web_s_health_check_asks_a_host_that_is_always_allowed():
    check = " ".join(SERVICES["web"]["healthcheck"]["test"])
    asked = re.search(r"http://([^:/]+)", check).group(1)

    always = re.sub(r"\$\{[^}]*\}", "", SERVICES["web"]["environment"]["ALLOWED_HOSTS"])
    assert asked in always.split(",")


@pytest.mark.parametrize("service", OURS)
def test_a_service_s_command_exists(service: str):
    command = command_of(service)

    if command[0] == "python":
        assert (ROOT / command[1]).is_file()
    else:
        package = {"celery": "celery", "gunicorn": "gunicorn"}[command[0]]
        assert importlib.util.find_spec(package)


@pytest.mark.parametrize("service", OURS)
def test_a_service_waits_for_what_it_needs(service: str):
    for other, terms in SERVICES[service]["depends_on"].items():
        if terms["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        else:
            assert terms["condition"] == "service_completed_successfully"


def test_secrets_have_no_default():
    text = (ROOT / "docker-compose.yml").read_text()

    for name in ("SECRET_KEY", "POSTGRES_PASSWORD"):
        uses = re.findall(r"\$\{" + name + r"([^}]*)\}", text)
        assert uses
        assert all(rest.startswith(":?") for rest in uses)


@pytest.mark.parametrize("service", ["worker", "beat"])
def test_celery_understands_the_options(service: str):
    words = command_of(service)
    command = celery.commands[service]

    parser = command.make_parser(click.Context(command, info_name=service))
    _, rest, _ = parser.parse_args(words[words.index(service) + 1 :])

    assert rest == []


def test_the_image_runs_the_server_without_root_and_installs_by_hash():
    text = (ROOT / "Dockerfile").read_text()

    assert re.search(r"^USER (?!root)", text, flags=re.M)
    assert "--require-hashes" in text
    assert "COPY .env" not in text
    assert ".env" in (ROOT / ".dockerignore").read_text().split()


def test_what_the_image_needs_to_run_is_in_its_lock():
    lock = (ROOT / "requirements" / "runtime.txt").read_text()

    for package in ("django", "celery", "gunicorn", "redis", "psycopg", "whitenoise"):
        assert re.search(rf"^{package}==", lock, flags=re.M), package


def test_the_ci_script_is_valid_bash():
    if not shutil.which("bash"):
        pytest.skip("no bash here")

    done = subprocess.run(
        ["bash", "-n", str(ROOT / ".ci" / "run")], capture_output=True, text=True, timeout=10
    )

    assert done.returncode == 0, done.stderr
