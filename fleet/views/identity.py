"""What a machine claims to be, its parts and where each has been, and swaps with their preview."""

from collections.abc import Iterator

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST, require_safe

from fleet import capacity, clock, parts, services
from fleet.identity import Claim, Swap, part_name
from fleet.models import Machine, MachineClaim
from fleet.services.swaps import CLOSED, SwapPreview
from fleet.views import fleet_page, needs, page
from fleet.views.capacity import NAMES, span

WORK = "fleet.work_repair"
#: Both forms of the page have a kind and a slot; ids have to differ.
CLAIM_IDS = "claim_%s"
MOST_SWAPS = 100
MOST_STAYS = 200
MOST_CONFLICTS = 100


class ClaimForm(forms.Form):
    """One value that the machine claims from now on; an empty one ends the claim."""

    kind = forms.ChoiceField(
        label=_("Kind"),
        choices=[
            (MachineClaim.Kind.SERIAL, _("serial")),
            (MachineClaim.Kind.UUID, _("UUID")),
            (MachineClaim.Kind.MAC, _("MAC")),
            (MachineClaim.Kind.BMC_ADDRESS, _("BMC address")),
        ],
    )
    slot = forms.CharField(
        label=_("Part"), max_length=80, required=False, help_text=_("of a MAC: as nic/0")
    )
    value = forms.CharField(
        label=_("Value"), max_length=200, required=False, help_text=_("empty ends the claim")
    )


class SwapForm(forms.Form):
    """One part that comes into a slot, with what the host is known by afterwards."""

    kind = forms.CharField(
        label=_("Kind of part"),
        max_length=40,
        help_text=_("as the inventory names it; a board takes UUID and BMC along"),
    )
    slot = forms.CharField(label=_("Slot"), max_length=40, required=False)
    old_serial = forms.CharField(
        label=_("Serial of the part that leaves"),
        max_length=100,
        required=False,
        help_text=_("as read off it; the inventory's must be the same"),
    )
    new_serial = forms.CharField(
        label=_("Serial of the part that comes"),
        max_length=100,
        required=False,
        help_text=_("empty: the slot stays empty"),
    )
    new_model = forms.CharField(label=_("Its model"), max_length=100, required=False)
    mac = forms.CharField(
        label=_("Its MAC"), max_length=200, required=False, help_text=_("of a NIC or a board")
    )
    uuid = forms.CharField(
        label=_("The host's new UUID"), max_length=200, required=False, help_text=_("of a board")
    )
    bmc_address = forms.CharField(label=_("The BMC's new address"), max_length=200, required=False)

    def swap(self) -> Swap:
        """Return what was filled in; a MAC belongs to the part, or with a board to its BMC."""
        told = self.cleaned_data
        part = part_name(told["kind"], told["slot"])
        return Swap(
            kind=told["kind"],
            slot=told["slot"],
            new_serial=told["new_serial"],
            new_model=told["new_model"],
            old_serial=told["old_serial"],
            claims=tuple(self._claims("" if told["kind"] == "board" else part)),
        )

    def _claims(self, part: str) -> Iterator[Claim]:
        for kind, slot in (("mac", part), ("uuid", ""), ("bmc_address", "")):
            if value := self.cleaned_data[kind]:
                yield Claim(kind, value, slot)


class PartForm(forms.Form):
    """Which part."""

    serial = forms.CharField(label=_("Serial"), max_length=100)


# --- a machine ------------------------------------------------------------------------------------


@fleet_page
@require_safe
def machine(request: HttpRequest, name: str) -> HttpResponse:
    """What one machine claims to be, is made of, is meant to run, and where it spent its time."""
    return _machine(request, _found(name))


def _found(name: str) -> Machine:
    return get_object_or_404(Machine.objects.select_related("platform"), name=name)


def _machine(
    request: HttpRequest,
    own: Machine,
    *,
    swap_form: SwapForm | None = None,
    claim_form: ClaimForm | None = None,
    seen: SwapPreview | None = None,
) -> HttpResponse:
    now = clock.now()
    swap_form = swap_form or SwapForm()
    claim_form = claim_form or ClaimForm(auto_id=CLAIM_IDS)
    stays = capacity.stays_of(own, until=now)[::-1]
    may_work = request.user.has_perm(WORK)
    is_wrong = bool(swap_form.errors or claim_form.errors)
    context = {
        "title": own.name,
        "machine": own,
        "claims": parts.claims_of(own, as_of=now),
        "components": own.components.order_by("kind", "slot"),
        "swaps": own.swaps.order_by("-at", "-pk")[:MOST_SWAPS],
        "intended": services.intended(own, now=now),
        "stays": [
            {
                "state": NAMES.get(stay.state, stay.state),
                "since": stay.since,
                "until": stay.until,
                "length": span(stay.hours(now=now)),
            }
            for stay in stays[:MOST_STAYS]
        ],
        "left_off": max(len(stays) - MOST_STAYS, 0),
        "may_work": may_work,
        "may_swap": may_work and own.state not in CLOSED,
        "swap_form": swap_form,
        "claim_form": claim_form,
        "seen": seen,
    }
    status = 400 if is_wrong else 200
    return page(request, "fleet/identity/machine.html", context, status=status)


@needs(WORK)
@require_POST
def swap(request: HttpRequest, name: str) -> HttpResponse:
    """Show what a swap would move; do it once that was seen and confirmed."""
    own, form, now = _found(name), SwapForm(request.POST), clock.now()
    if not form.is_valid():
        return _machine(request, own, swap_form=form)
    wanted = form.swap()
    if "confirm" not in request.POST:
        seen = services.preview_swap(own, [wanted], now=now)
        return _machine(request, own, swap_form=_as_seen(form, seen), seen=seen)
    services.swap_parts(
        own,
        [wanted],
        repair=own.repairs.filter(status__in=("under_way", "at_supplier")).first(),
        actor=request.user.get_username(),
        now=now,
    )
    return redirect("fleet:machine-identity", own.name)


def _as_seen(form: SwapForm, seen: SwapPreview) -> SwapForm:
    """Name the part that was seen to leave, so that another one that sits there now is not swapped.

    Somebody else may swap it between the sight and the word.
    """
    return SwapForm({**form.cleaned_data, "old_serial": seen.moves[0].old_serial})


@needs(WORK)
@require_POST
def claim(request: HttpRequest, name: str) -> HttpResponse:
    """Write down what the machine claims from now on."""
    own, form = _found(name), ClaimForm(request.POST, auto_id=CLAIM_IDS)
    if not form.is_valid():
        return _machine(request, own, claim_form=form)
    wanted = Claim(**form.cleaned_data)
    services.claim(own, [wanted], actor=request.user.get_username(), now=clock.now())
    return redirect("fleet:machine-identity", own.name)


# --- a part ---------------------------------------------------------------------------------------


@fleet_page
@require_safe
def find_part(request: HttpRequest) -> HttpResponse:
    """Ask for a part by its serial; list values that several machines claim at once."""
    form = PartForm(request.GET if "serial" in request.GET else None)
    if form.is_valid():
        return redirect("fleet:part", form.cleaned_data["serial"])
    conflicts = parts.conflicts(limit=MOST_CONFLICTS + 1)
    context = {
        "title": _("Where a part has been"),
        "form": form,
        "conflicts": conflicts[:MOST_CONFLICTS],
        "is_cut": len(conflicts) > MOST_CONFLICTS,
    }
    return page(request, "fleet/identity/find.html", context, status=400 if form.errors else 200)


@fleet_page
@require_safe
def part(request: HttpRequest, serial: str) -> HttpResponse:
    """Where a part has been, with the faults that it had in each slot."""
    now = clock.now()
    been = parts.been(serial, as_of=now)
    context = {
        "title": serial,
        "form": PartForm(initial={"serial": serial}),
        "been": been,
        "faults": sum(stay.faults for stay in been),
        "machines": len({stay.machine for stay in been}),
    }
    return page(request, "fleet/identity/part.html", context)
