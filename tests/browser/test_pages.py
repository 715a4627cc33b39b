"""The operators' pages in a real browser: one click halts, pages follow by themselves."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AbstractBaseUser, Group

from rollouts import services
from rollouts.models import Rollout
from tests.factories import NOW, make_machines, make_user
from tests.rollouts import rows
from tests.rollouts.plans import bundle_of

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Any]


def member_of(group: str) -> AbstractBaseUser:
    user = make_user(is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    return user


def test_one_click_halts(open_page: Open):
    rollout = rows.running()
    page = open_page(member_of("viewer"), f"/rollouts/{rollout.pk}/")

    page.get_by_role("button", name="Halt").click()
    page.locator("#part-head [data-tone=halted]").wait_for()

    rollout.refresh_from_db()
    assert rollout.status == "halted"
    assert page.get_by_role("button", name="Halt").count() == 0


def test_a_page_follows_the_evidence_and_leaves_a_half_written_reason_alone(open_page: Open):
    rollout = rows.running()
    page = open_page(member_of("operator"), f"/rollouts/{rollout.pk}/")
    reason = page.get_by_label("Reason (may be left out)").first
    reason.fill("fans at full")

    rows.look(rollout.waves.first(), reason="not yet proven: throughput")
    page.get_by_role("status").get_by_text("not yet proven: throughput").wait_for()

    page.locator("svg.cm-bar").first.wait_for()
    assert reason.input_value() == "fans at full"
    assert reason.evaluate("element => element === document.activeElement")


def test_a_wave_that_was_closed_stays_closed_when_evidence_arrives(open_page: Open):
    rollout = rows.running()
    wave = rollout.waves.first()
    rows.look(wave, 1)
    page = open_page(member_of("viewer"), f"/rollouts/{rollout.pk}/")
    page.locator("#wave-1 > summary").click()

    rows.look(wave, 2, reason="still not proven")
    page.locator("#part-evidence").get_by_text("Look 2", exact=False).wait_for(state="attached")

    assert page.locator("#wave-1").evaluate("element => element.open") is False


def test_a_second_person_approves_in_the_browser(open_page: Open):
    rollout = rows.submitted()
    page = open_page(member_of("approver"), "/")

    page.get_by_role("link", name=rollout.name).click()
    page.locator("summary", has_text="Approve").click()
    page.locator("form[action$='/orders/approve']").get_by_role("button").click()
    page.locator("#part-head [data-tone=approved]").wait_for()

    rollout.refresh_from_db()
    assert rollout.status == "approved"


def test_dark_mode_changes_the_cards_and_keeps_text_readable(open_page: Open):
    rollout = rows.running()
    rows.look(rollout.waves.first())
    user = member_of("viewer")

    def contrast(scheme: str) -> float:
        page = open_page(user, f"/rollouts/{rollout.pk}/", color_scheme=scheme)
        card = page.locator(".cm-card").first
        card.wait_for()
        return card.evaluate(CONTRAST)

    assert contrast("light") > 7
    assert contrast("dark") > 7


#: WCAG's contrast of an element's text against its background.
CONTRAST = """element => {
  const light = text => {
    const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(element);
  const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


def test_a_narrow_screen_does_not_scroll_sideways(open_page: Open):
    rollout = rows.running()
    rows.look(rollout.waves.first())

    page = open_page(member_of("viewer"), f"/rollouts/{rollout.pk}/")
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator(".cm-ladder").wait_for()

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_documentation_works_under_the_content_security_policy(open_page: Open):
    page = open_page(member_of("viewer"), "/api/docs/")

    page.locator("#operations-tag-rollouts").click()

    page.get_by_text("/api/v1/rollouts/{id}/halt", exact=False).first.wait_for()


def test_an_order_that_came_too_late_is_told_in_words(open_page: Open, complaints: list[str]):
    rollout = rows.running()
    page = open_page(member_of("operator"), f"/rollouts/{rollout.pk}/")
    pause = page.locator("summary", has_text="Pause")
    pause.click()
    services.halt(rollout, actor=rollout.author, now=NOW)

    page.route("**/parts/**", lambda route: route.abort())  # the page has not noticed yet
    page.locator("form[action$='/orders/pause']").get_by_role("button").click(no_wait_after=True)

    page.get_by_role("alert").get_by_text("a rollout that is halted cannot pause").wait_for()
    assert "409 (Conflict)" in complaints.pop()
    page.get_by_role("link", name="Back").click()
    page.wait_for_url(f"**/rollouts/{rollout.pk}/")


def test_a_draft_is_written_without_scripts(open_page: Open):
    make_machines(40, versions={"bmc": "1.0"})
    bundle = bundle_of()
    page = open_page(member_of("operator"), "/rollouts/new", java_script_enabled=False)

    page.locator("#id_name").fill("bmc 2")
    page.locator("#id_bundle").select_option(label=str(bundle))
    page.locator("#id_selector").fill("platform=dgx-h100")
    page.get_by_role("button", name="Write the draft").click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("heading", name="Who and when: 40 machines").wait_for()

    assert Rollout.objects.get().name == "bmc 2"
