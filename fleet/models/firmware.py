"""Images, bundles and the version history."""

from typing import Any

from django.conf import settings
from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.errors import BundleFrozen
from fleet.models.inventory import Machine, Platform


class FirmwareImage(models.Model):
    """One version of one kind of component's firmware."""

    class Activation(models.TextChoices):
        NONE = "none"
        RESET = "reset"
        REBOOT = "reboot"
        POWER_CYCLE = "power_cycle"
        AC_CYCLE = "ac_cycle"
        BY_HAND = "by_hand"

    class Domain(models.TextChoices):
        COMPONENT = "component"
        HOST = "host"
        CHASSIS = "chassis"
        RACK = "rack"
        POWER_SHELF = "power_shelf"

    class Scheme(models.TextChoices):
        DOTTED = "dotted"
        HEXADECIMAL = "hexadecimal"
        NUMBER = "number"
        VENDOR_LETTERS = "vendor_letters"
        PLAIN = "plain"

    kind = models.CharField(max_length=40)
    vendor = models.CharField(max_length=100, blank=True)
    version = models.CharField(max_length=100)
    scheme = models.CharField(max_length=20, choices=Scheme, default=Scheme.DOTTED)
    file_name = models.CharField(max_length=200, blank=True)
    size_bytes = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True)
    signature_status = models.CharField(max_length=40, default="not_verifiable")
    activation = models.CharField(max_length=12, choices=Activation, default=Activation.REBOOT)
    activation_domain = models.CharField(max_length=12, choices=Domain, default=Domain.HOST)
    is_downgrade_allowed = models.BooleanField(default=True)
    floor_version = models.CharField(max_length=100, blank=True)
    timeout_minutes = models.PositiveIntegerField(
        default=60, help_text="for writing it, and again for activating it"
    )
    stages_online = models.BooleanField(
        default=False, help_text="may be written while the machine works"
    )

    class Meta:
        ordering = ("kind", "version")
        constraints = (
            models.UniqueConstraint(fields=["kind", "vendor", "version"], name="image_once"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.version}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        frozen = self.pk and self.bundles.exclude(status=BundleStatus.DRAFT).first()
        if frozen:
            raise BundleFrozen(f"image {self} is part of bundle {frozen}, which is {frozen.status}")
        super().save(*args, **kwargs)


class BundleStatus(models.TextChoices):
    """A bundle is a draft, then approved (and frozen), perhaps withdrawn."""

    DRAFT = "draft"
    APPROVED = "approved"
    WITHDRAWN = "withdrawn"


class FirmwareBundle(models.Model):
    """An ordered, approved set of images; frozen once approved.

    `on_partial` says what becomes of a machine on which some images took and others did not.
    """

    class OnPartial(models.TextChoices):
        FINISH = "finish"
        REVERT = "revert"
        QUARANTINE = "quarantine"

    name = models.CharField(max_length=100)
    version = models.CharField(max_length=100)
    platforms = models.ManyToManyField(Platform, related_name="bundles")
    images = models.ManyToManyField(FirmwareImage, through="BundleImage", related_name="bundles")
    status = models.CharField(max_length=10, choices=BundleStatus, default=BundleStatus.DRAFT)
    digest = models.CharField(max_length=64, blank=True)
    known_issues = models.JSONField(default=list, blank=True)
    required_pairs = models.JSONField(default=dict, blank=True)
    on_partial = models.CharField(max_length=10, choices=OnPartial, default=OnPartial.QUARANTINE)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    approver = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    created_at = models.DateTimeField()
    approved_at = models.DateTimeField(null=True, blank=True)
    withdrawer = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    withdrawn_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("name", "version")
        constraints = (
            models.UniqueConstraint(fields=["name", "version"], name="bundle_once"),
            models.CheckConstraint(
                condition=models.Q(status="draft") | ~models.Q(digest=""),
                name="bundle_frozen_has_digest",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class BundleImage(models.Model):
    """An image's place in the order of its bundle."""

    bundle = models.ForeignKey(FirmwareBundle, on_delete=models.CASCADE, related_name="places")
    image = models.ForeignKey(FirmwareImage, on_delete=models.PROTECT, related_name="places")
    position = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ("bundle", "position")
        constraints = (
            models.UniqueConstraint(fields=["bundle", "position"], name="bundle_position_once"),
            models.UniqueConstraint(fields=["bundle", "image"], name="bundle_image_once"),
        )

    def __str__(self) -> str:
        return f"{self.bundle} #{self.position}: {self.image}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        self._refuse_frozen()
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        self._refuse_frozen()
        return super().delete(*args, **kwargs)

    def _refuse_frozen(self) -> None:
        if self.bundle.status != BundleStatus.DRAFT:
            raise BundleFrozen(f"bundle {self.bundle} is {self.bundle.status}; its images stay")


class FirmwareRecord(AppendOnlyModel):
    """The version history: from `since` on, this version was staged, active or committed.

    A record holds until the next one of the same machine, kind, slot and stage; so an interval
    is closed by appending, never by editing. An empty version says that the component left or
    that nothing is known from then on.
    """

    class Stage(models.TextChoices):
        STAGED = "staged"
        ACTIVE = "active"
        COMMITTED = "committed"

    class Source(models.TextChoices):
        BMC = "bmc"
        HOST = "host"
        ATTEMPT = "attempt"
        REPAIR = "repair"
        IMPORT = "import"

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="firmware")
    kind = models.CharField(max_length=40)
    slot = models.CharField(max_length=40, blank=True)
    stage = models.CharField(max_length=10, choices=Stage)
    version = models.CharField(max_length=100, blank=True)
    since = models.DateTimeField()
    source = models.CharField(max_length=10, choices=Source)
    is_disputed = models.BooleanField(default=False)
    evidence = models.JSONField(default=dict, blank=True)
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("machine", "kind", "slot", "stage", "since", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["machine", "kind", "slot", "stage", "since", "source"],
                name="firmware_record_once",
            ),
        )
        indexes = (
            models.Index(fields=["kind", "version", "since"], name="firmware_kind_version"),
            models.Index(fields=["since"], name="firmware_since"),
        )

    def __str__(self) -> str:
        return f"{self.machine} {self.kind} {self.version} {self.stage} since {self.since}"


class DesiredBundle(AppendOnlyModel):
    """Which bundle machines of a platform are meant to run; the newest row of a pool holds.

    An empty pool means every pool that has no row of its own. Without a bundle nothing is wanted
    any more, and the pool is back to what holds for every pool.
    """

    platform = models.ForeignKey(Platform, on_delete=models.PROTECT, related_name="desired")
    pool = models.CharField(max_length=100, blank=True)
    bundle = models.ForeignKey(
        FirmwareBundle, on_delete=models.PROTECT, related_name="desired", null=True, blank=True
    )
    since = models.DateTimeField()
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    reason = models.CharField(max_length=300)
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("platform", "pool", "pk")
        indexes = (models.Index(fields=["platform", "pool"], name="desired_platform_pool"),)

    def __str__(self) -> str:
        return f"{self.platform} {self.pool or 'every pool'}: {self.bundle or 'nothing'}"
