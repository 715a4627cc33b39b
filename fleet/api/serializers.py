"""The fleet's fields as the API shows and takes them."""

from typing import Any, ClassVar

from rest_framework import serializers

from fleet.api.base import ChoiceField, StrictModelSerializer, StrictSerializer, ZonedDateTimeField
from fleet.models import (
    FaultSignature,
    FirmwareBundle,
    FirmwareImage,
    FirmwareRecord,
    Machine,
    Platform,
    Recovery,
)

MOST_RECORDS = 10_000


class MachineSerializer(StrictModelSerializer):
    """A machine as it stands now. How to reach its BMC is nobody's business here."""

    platform = serializers.SlugRelatedField("name", read_only=True)
    team = serializers.SlugRelatedField("name", read_only=True)
    owner_team = serializers.SlugRelatedField("name", read_only=True)
    held_by = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Machine
        exclude: ClassVar = ["bmc_address", "credential"]


class RetirementSerializer(StrictSerializer):
    """Why a machine leaves the fleet."""

    reason = serializers.CharField(required=False, max_length=300)


class VersionsSerializer(StrictSerializer):
    """Which versions a machine held at one time, at one stage."""

    machine = serializers.CharField()
    as_of = serializers.DateTimeField()
    stage = ChoiceField(FirmwareRecord.Stage.choices)
    versions = serializers.DictField(
        child=serializers.CharField(), help_text="version by kind, or by kind/slot"
    )


class StageQuerySerializer(StrictSerializer):
    """Which stage of the history is asked for."""

    stage = ChoiceField(FirmwareRecord.Stage.choices)


class IntervalSerializer(StrictSerializer):
    """One version of one component, from when to when."""

    kind = serializers.CharField()
    slot = serializers.CharField()
    stage = ChoiceField(FirmwareRecord.Stage.choices)
    version = serializers.CharField()
    spelt = serializers.CharField(help_text="the version; a number in both its spellings")
    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True, help_text="null: it still is so")
    source = serializers.CharField()  # type: ignore[assignment]
    is_disputed = serializers.BooleanField()


class HistorySerializer(StrictSerializer):
    """The version history of a machine, as it was known at one time."""

    machine = serializers.CharField()
    as_of = serializers.DateTimeField()
    intervals = IntervalSerializer(many=True)


class PlatformSerializer(StrictModelSerializer):
    """A model line of machines."""

    class Meta:
        model = Platform
        fields: ClassVar = ["name", "vendor", "accelerators"]


class ImageSerializer(StrictModelSerializer):
    """One version of one kind of component's firmware."""

    class Meta:
        model = FirmwareImage
        fields = "__all__"


class PlacedImageSerializer(StrictModelSerializer):
    """An image as a bundle names it."""

    class Meta:
        model = FirmwareImage
        fields: ClassVar = ["id", "kind", "vendor", "version", "activation"]


class BundleSerializer(StrictModelSerializer):
    """A bundle with its images in order."""

    platforms = serializers.SlugRelatedField("name", many=True, read_only=True)
    images = serializers.SerializerMethodField()
    author = serializers.SlugRelatedField("username", read_only=True)
    approver = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = FirmwareBundle
        fields = "__all__"

    def get_images(self, bundle: FirmwareBundle) -> list[dict[str, Any]]:
        places = sorted(bundle.places.all(), key=lambda place: place.position)
        return [dict(PlacedImageSerializer(place.image).data) for place in places]


class NewBundleSerializer(StrictModelSerializer):
    """What a new bundle is made of."""

    platforms = serializers.SlugRelatedField(
        "name", many=True, queryset=Platform.objects.all(), allow_empty=False
    )
    images = serializers.PrimaryKeyRelatedField(
        many=True,
        queryset=FirmwareImage.objects.all(),
        allow_empty=False,
        help_text="identifiers of images, in the order in which they are installed",
    )

    class Meta:
        model = FirmwareBundle
        fields: ClassVar = ["name", "version", "platforms", "images", "on_partial"]


class EmptySerializer(StrictSerializer):
    """A body without fields."""


# --- telemetry ----------------------------------------------------------------------------------


class EnvelopeSerializer(StrictSerializer):
    """Around the records of a batch."""

    source = serializers.CharField(max_length=100, help_text="who reports")  # type: ignore[assignment]
    key = serializers.CharField(
        max_length=200, help_text="names this delivery; sending it again changes nothing"
    )


class BatchSerializer(EnvelopeSerializer):
    """A batch as it is taken: its records are checked one by one when they are stored."""

    records = serializers.ListField(
        child=serializers.DictField(), min_length=1, max_length=MOST_RECORDS
    )


class FaultReportSerializer(StrictSerializer):
    """One fault of one machine."""

    machine = serializers.CharField()
    time = ZonedDateTimeField()
    signature = serializers.CharField()
    severity = ChoiceField(FaultSignature.Severity.choices, required=False)
    component = serializers.CharField(required=False)
    boot_id = serializers.CharField(required=False)
    job = serializers.CharField(required=False)
    source_key = serializers.CharField(required=False)


class CounterReportSerializer(StrictSerializer):
    """One value of a counter, which begins at 0 with each boot."""

    machine = serializers.CharField()
    time = ZonedDateTimeField()
    signature = serializers.CharField(help_text="what it counts")
    value = serializers.IntegerField(min_value=0)
    boot_id = serializers.CharField()
    source_key = serializers.CharField(required=False)


class ObservationReportSerializer(StrictSerializer):
    """What one machine did over an interval."""

    machine = serializers.CharField()
    start = ZonedDateTimeField()
    end = ZonedDateTimeField()
    in_service_seconds = serializers.FloatField()
    throughput = serializers.FloatField(required=False, help_text="relative to nominal")
    workload = serializers.CharField(required=False)
    job = serializers.CharField(required=False, help_text="the job that it worked on")
    boot_id = serializers.CharField(required=False)
    detector = serializers.CharField(required=False)
    source_key = serializers.CharField(required=False)


class RecoveryReportSerializer(StrictSerializer):
    """One interruption and, once it is over, how the work came back."""

    machine = serializers.CharField()
    time = ZonedDateTimeField()
    recovered_at = ZonedDateTimeField(required=False)
    path = ChoiceField(Recovery.Path.choices, required=False)
    recovery_seconds = serializers.FloatField(required=False)
    repeated_seconds = serializers.FloatField(required=False)
    job = serializers.CharField(required=False)
    source_key = serializers.CharField(required=False)


class FaultBatchSerializer(EnvelopeSerializer):
    """A batch as the schema describes it."""

    records = serializers.ListField(
        child=FaultReportSerializer(), min_length=1, max_length=MOST_RECORDS
    )


class CounterBatchSerializer(EnvelopeSerializer):
    """A batch as the schema describes it."""

    records = serializers.ListField(
        child=CounterReportSerializer(), min_length=1, max_length=MOST_RECORDS
    )


class ObservationBatchSerializer(EnvelopeSerializer):
    """A batch as the schema describes it."""

    records = serializers.ListField(
        child=ObservationReportSerializer(), min_length=1, max_length=MOST_RECORDS
    )


class RecoveryBatchSerializer(EnvelopeSerializer):
    """A batch as the schema describes it."""

    records = serializers.ListField(
        child=RecoveryReportSerializer(), min_length=1, max_length=MOST_RECORDS
    )


class RefusalSerializer(StrictSerializer):
    """A record that was not stored, and why."""

    index = serializers.IntegerField(help_text="place in the batch, from 0")
    field = serializers.CharField()
    value = serializers.JSONField()
    reason = serializers.CharField()


class BatchResultSerializer(StrictSerializer):
    """What became of a batch, record by record."""

    source = serializers.CharField()  # type: ignore[assignment]
    key = serializers.CharField()
    accepted = serializers.IntegerField()
    duplicates = serializers.IntegerField()
    refused = RefusalSerializer(many=True)


# --- tokens -------------------------------------------------------------------------------------


class NewTokenSerializer(StrictSerializer):
    """How long a new token is to live."""

    hours = serializers.IntegerField(
        min_value=1, max_value=24 * 366, required=False, help_text="without it: until it is revoked"
    )


class TokenSerializer(StrictSerializer):
    """A token as it can be seen later: its first characters only."""

    token_key = serializers.CharField()
    created = serializers.DateTimeField()
    expiry = serializers.DateTimeField(allow_null=True)


class IssuedTokenSerializer(TokenSerializer):
    """A token at its birth, the only time that it is shown."""

    token = serializers.CharField()
