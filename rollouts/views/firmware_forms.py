"""What a person asks of the version history; a question that cannot be asked is refused."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from fleet import clock
from fleet.errors import SelectorError
from fleet.firmware.drift import Standing
from fleet.models import BundleStatus, FirmwareBundle, FirmwareRecord, Machine, Platform
from fleet.selectors import machines_matching


class DriftForm(forms.Form):
    """Which machines, against which bundle."""

    bundle = forms.ModelChoiceField(
        label=_("Against"),
        queryset=FirmwareBundle.objects.exclude(status="draft"),
        required=False,
        empty_label=_("what each is meant to run"),
    )
    selector = forms.CharField(label=_("Machines"), max_length=1000, required=False)

    def clean_selector(self) -> str:
        """A selector that selects nothing for a reason says it."""
        text = str(self.cleaned_data["selector"])
        if text:
            try:
                machines_matching(text)
            except SelectorError as error:
                raise forms.ValidationError(str(error)) from error
        return text

    def machines(self) -> Any:
        """The machines that are meant."""
        text = self.cleaned_data["selector"]
        return machines_matching(text) if text else Machine.objects.all()


class DriftListForm(DriftForm):
    """The same, machine by machine."""

    standing = forms.ChoiceField(
        label=_("Standing"),
        choices=[("", _("all")), *((one.value, one.value) for one in Standing)],
        required=False,
    )
    after = forms.CharField(widget=forms.HiddenInput, required=False)


class WantedForm(forms.Form):
    """Which bundle the machines of a platform are meant to run, in one pool or every other."""

    platform = forms.ModelChoiceField(
        label=_("Platform"), queryset=Platform.objects.order_by("name"), empty_label=None
    )
    pool = forms.CharField(
        label=_("Pool"),
        max_length=100,
        required=False,
        help_text=_("Empty: every pool that has no bundle of its own."),
    )
    bundle = forms.ModelChoiceField(
        label=_("Bundle"),
        queryset=FirmwareBundle.objects.filter(status=BundleStatus.APPROVED),
        required=False,
        empty_label=_("none: what holds for every pool, or nothing"),
    )
    reason = forms.CharField(
        label=_("Reason"),
        max_length=300,
        required=False,
        help_text=_("Needed to set it, not to look at what it would mean."),
    )

    def clean_pool(self) -> str:
        """A pool that no machine of the platform is in would hold for nobody."""
        pool, platform = str(self.cleaned_data["pool"]), self.cleaned_data.get("platform")
        if pool and not Machine.objects.filter(platform=platform, pool=pool).exists():
            raise forms.ValidationError(
                _("no machine of %(platform)s is in pool %(pool)s"),
                params={"platform": platform, "pool": repr(pool)},
            )
        return pool

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        platform, bundle = given.get("platform"), given.get("bundle")
        if platform and bundle and not bundle.platforms.filter(pk=platform.pk).exists():
            self.add_error("bundle", _("it is not made for this platform"))
        if "set" in self.data and not given.get("reason"):
            self.add_error("reason", _("say why"))
        return given


class RunForm(forms.Form):
    """Which machines ran a version, and when."""

    kind = forms.CharField(label=_("Component"), max_length=40)
    version = forms.CharField(label=_("Version"), max_length=100)
    start = forms.DateTimeField(label=_("From (UTC)"), validators=[clock.validate_year])
    end = forms.DateTimeField(label=_("Until (UTC)"), validators=[clock.validate_year])
    stage = forms.ChoiceField(label=_("Stage"), choices=FirmwareRecord.Stage.choices)
    after = forms.CharField(widget=forms.HiddenInput, required=False)

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        start, end = given.get("start"), given.get("end")
        if start and end and end <= start:
            self.add_error("end", _("is not after the beginning"))
        return given


class AsOfForm(forms.Form):
    """At what time; now, if nothing is said."""

    as_of = forms.DateTimeField(
        label=_("As of (UTC)"), required=False, validators=[clock.validate_year]
    )
