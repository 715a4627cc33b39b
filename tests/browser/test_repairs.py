"""A technician's whole repair in a real browser, with scripts turned off."""

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group

from fleet.lifecycle import State
from fleet.models import Evidence, Machine, Repair
from tests.factories import make_user
from tests.fleet.repairs_world import make_broken

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_repair_is_done_without_any_script(open_page: Any, tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "DATA_DIR", tmp_path)
    make_broken("gpu-1")
    user = make_user(is_staff=True)
    user.groups.set(Group.objects.filter(name="technician"))
    log = tmp_path / "r4.log"
    log.write_text("r4 passed\n")

    page = open_page(user, "/repairs/new", java_script_enabled=False)
    page.get_by_label("Machine").fill("gpu-1")
    page.get_by_label("Component").fill("gpu 3")
    page.get_by_label("Kind").select_option("gpu_swap")
    page.get_by_role("button", name="Order the repair").click()
    page.get_by_text("Begin the work").click()
    page.get_by_role("button", name="Confirm").first.click()
    page.get_by_role("link", name="End the repair").click()
    page.locator("[name=form-0-old_serial]").fill("G-OLD")
    page.locator("[name=form-0-new_serial]").fill("G-NEW")
    page.locator("#id_files").set_input_files(str(log))
    page.get_by_role("button", name="End the repair").click()

    page.get_by_text("G-NEW").first.wait_for()
    assert page.get_by_role("link", name="r4.log").is_visible()
    assert Repair.objects.get().status == "closed"
    assert Machine.objects.get().state == State.AWAITING_VALIDATION
    assert Evidence.objects.get().name == "r4.log"
