"""Make the virtual fleet and register its machines with the product, as any import would."""

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from fleet import services as fleet_services
from simulation.adapters import model_of
from simulation.fleet_model import MachineFacts
from simulation.models import VirtualFleet, VirtualMachine
from simulation.parameters import Parameters


@transaction.atomic
def create_fleet(
    parameters: Parameters, *, seed: int, origin: datetime, purpose: str, vouched_by: str
) -> VirtualFleet:
    """Store the fleet's truth and register its machines, in service since `origin`."""
    fleet = VirtualFleet.objects.create(
        pk=1,
        seed=seed,
        parameters=parameters.as_document(),
        origin=origin,
        purpose=purpose,
        created_at=timezone.now(),
    )
    model = model_of(fleet)
    for layout in model.parameters.layouts:
        fleet_services.register_platform(
            layout.platform, vendor=layout.vendor, accelerators=layout.accelerators
        )
    machines = fleet_services.register_machines(
        [_row(facts) for facts in model.machines], now=origin, vouched_by=vouched_by
    )
    ids = {machine.name: machine.pk for machine in machines}
    VirtualMachine.objects.bulk_create(
        [_virtual(fleet, facts, ids[facts.name]) for facts in model.machines], batch_size=500
    )
    return fleet


def _row(facts: MachineFacts) -> dict[str, object]:
    return {
        "name": facts.name,
        "platform": facts.layout.platform,
        "site": facts.site,
        "pool": f"{facts.layout.prefix}-{facts.site}",
        "rack": facts.rack,
        "job": facts.job,
        "workload": facts.workload,
        "scheduler_node": facts.name,
        "labels": {"virtual": "yes"},
        "components": [
            {"kind": kind, "slot": "", "version": version}
            for kind, version in facts.layout.versions.items()
        ],
    }


def _virtual(fleet: VirtualFleet, facts: MachineFacts, machine_id: int) -> VirtualMachine:
    return VirtualMachine(
        fleet=fleet,
        machine_id=machine_id,
        index=facts.index,
        versions=dict(facts.layout.versions),
        fault_multiplier=facts.fault_multiplier,
        throughput_level=facts.throughput_level,
        is_lemon=facts.is_lemon,
    )
