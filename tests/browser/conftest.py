"""A real browser on a live server; left out, visibly, where there is no Chromium."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser(django_db_setup: None) -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt install chromium")
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright keeps an event loop in this thread, in which Django would refuse to work.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=list(QUIET)
        )
        yield browser
        browser.close()


class Complaints(list[str]):
    """What a page should never do: errors in its console, scripts that fail, foreign requests."""

    def watch(self, page: Any, *, host: str) -> None:
        page.on("pageerror", lambda error: self.append(f"script: {error}"))
        page.on(
            "console",
            lambda message: message.type == "error" and self.append(f"console: {message.text}"),
        )
        page.on("request", lambda request: self.note(request.url, host))

    def note(self, url: str, host: str) -> None:
        if not url.startswith((host, "data:")):
            self.append(f"left the host: {url}")


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def open_page(browser: Any, live_server: Any, complaints: Complaints) -> Iterator[Any]:
    """Open a page as somebody, logged in; at the end no page may have complained."""
    contexts = []

    def open_as(user: Any, path: str, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        complaints.watch(page, host=live_server.url)
        page.goto(f"{live_server.url}/admin/login/?next={path}")
        page.get_by_label("Username").fill(user.username)
        page.get_by_label("Password", exact=False).first.fill("x")
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{live_server.url}{path}")
        return page

    yield open_as
    for context in contexts:
        context.close()
    assert complaints == []
