"""Take the pictures of `docs/images` from the present database, such as the demo leaves behind.

Machines come back while `manage.py up` runs: let it run for some minutes after the demo.

Run it as `python -m tests.browser.screenshots`, with `DATA_DIR` or `DATABASE_URL` set where the
database is not the default one. It serves the site by itself, on a free port of this host, and
writes nothing but a session, which it removes.
"""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SIZE = {"width": 1360, "height": 1300}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    # Playwright keeps an event loop in this thread, in which Django would refuse to work.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"

    from config.wsgi import application  # after the settings are known

    IMAGES.mkdir(parents=True, exist_ok=True)
    with served(application) as address, session() as cookie:
        shoot(address, cookie)


@contextmanager
def served(application: object) -> Iterator[str]:
    from waitress.server import create_server

    server = create_server(application, host="127.0.0.1", port=0, threads=4)
    threading.Thread(target=server.run, daemon=True).start()
    yield f"http://127.0.0.1:{server.effective_port}"
    server.close()


@contextmanager
def session() -> Iterator[str]:
    """The session cookie of somebody who may see everything."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore

    user = User.objects.filter(is_active=True, is_staff=True).order_by("-is_superuser").first()
    if user is None:
        sys.exit("nobody may log in to this database; run `python3 manage.py demo` first")
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    yield str(store.session_key)
    store.delete()


def pages() -> Iterator[tuple[str, str]]:
    """Name and path of each picture; rollouts by how they ended."""
    from fleet.models import Gate
    from rollouts.models import Rollout

    yield "home", "/"
    yield "return", "/return/"
    yield "goodput", "/goodput/"
    gates = Gate.objects.filter(made_for="", incident__isnull=False)
    gate = gates.filter(status__in=("observing", "passed")).order_by("-status", "pk").last()
    if gate is None:
        print("no repair's gate in this database; `up` makes some in minutes", file=sys.stderr)
    else:
        yield "gate", f"/gates/{gate.pk}/"
        yield "incident", f"/incidents/{gate.incident_id}/"
    yield "admin", "/admin/"
    yield "new-rollout", "/rollouts/new"
    updates = Rollout.objects.filter(kind=Rollout.Kind.UPDATE)
    for name, found, part in (
        ("rollout-widened", updates.filter(status="completed"), ""),
        ("rollout-halted", updates.filter(decisions__kind="halt"), ""),
        ("now-what", updates.filter(decisions__kind="halt"), "now-what/"),
        ("planner", updates.filter(previews__isnull=False), "plan"),
    ):
        rollout = found.order_by("-pk").first()
        if rollout is None:
            print(f"no rollout for {name}.png in this database", file=sys.stderr)
        else:
            yield name, f"/rollouts/{rollout.pk}/{part}"


def shoot(address: str, cookie: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            headless=True,
            args=["--no-sandbox", "--disable-gpu"],
        )
        context = browser.new_context(viewport=SIZE)
        context.add_cookies([{"name": "sessionid", "value": cookie, "url": address}])
        page = context.new_page()
        for name, path in pages():
            page.goto(address + path, wait_until="networkidle")
            page.screenshot(path=IMAGES / f"{name}.png")
            print(IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
