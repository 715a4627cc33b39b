"""The pages about machines."""

from django.urls import path

from fleet.views import capacity, gates, goodput, identity, incidents, machines, repairs

app_name = "fleet"

urlpatterns = [
    path("gates/", gates.index, name="gates"),
    path("gates/<int:pk>/", gates.detail, name="gate"),
    path("gates/<int:pk>/checks/<int:check>/report", gates.report, name="gate-report"),
    path("gates/<int:pk>/partner", gates.partner, name="gate-partner"),
    path("gates/<int:pk>/retry", gates.retry, name="gate-retry"),
    path("gates/<int:pk>/review", gates.review, name="gate-review"),
    path("gate-plans/", gates.plans, name="gate-plans"),
    path("gate-plans/<int:pk>/new", gates.new_plan, name="gate-plan-new"),
    path("machines/<str:name>/", machines.detail, name="machine"),
    path("machines/<str:name>/take", machines.take, name="machine-take"),
    path("machines/<str:name>/hand-over", machines.hand_over, name="machine-hand-over"),
    path(
        "machines/<str:name>/diagnose-again",
        machines.diagnose_again,
        name="machine-diagnose-again",
    ),
    path("machines/<str:name>/take-out", machines.take_out, name="machine-take-out"),
    path("machines/<str:name>/retire", machines.retire, name="machine-retire"),
    path("machines/<str:name>/cordon", machines.cordon, name="machine-cordon"),
    path("machines/<str:name>/cordons/<int:pk>/lift", machines.lift, name="machine-lift"),
    path("machines/<str:name>/break-glass", machines.break_glass, name="machine-break-glass"),
    path(
        "machines/<str:name>/break-glass/<int:pk>/review",
        machines.review_glass,
        name="machine-review-glass",
    ),
    path("cordons/", machines.cordons, name="cordons"),
    path("notices/", machines.notices, name="notices"),
    path("incidents/", incidents.index, name="incidents"),
    path("incidents/<int:pk>/", incidents.detail, name="incident"),
    path("incidents/<int:pk>/diagnose", incidents.diagnose, name="incident-diagnose"),
    path("incidents/<int:pk>/cause", incidents.name_cause, name="incident-cause"),
    path("incidents/<int:pk>/link", incidents.link, name="incident-link"),
    path("incidents/<int:pk>/case", incidents.open_case, name="incident-case"),
    path("incidents/<int:pk>/note", incidents.note, name="incident-note"),
    path("incidents/<int:pk>/impact", incidents.tell_impact, name="incident-impact"),
    path("repairs/", repairs.index, name="repairs"),
    path("repairs/new", repairs.new, name="repair-new"),
    path("repairs/<int:pk>/", repairs.detail, name="repair"),
    path("repairs/<int:pk>/start", repairs.start, name="repair-start"),
    path("repairs/<int:pk>/send-away", repairs.send_away, name="repair-send-away"),
    path("repairs/<int:pk>/cancel", repairs.cancel, name="repair-cancel"),
    path("repairs/<int:pk>/close", repairs.close, name="repair-close"),
    path("repairs/<int:pk>/evidence", repairs.add_evidence, name="repair-evidence"),
    path("evidence/<int:pk>", repairs.evidence, name="evidence"),
    path("return/", capacity.returning, name="return"),
    path("return/<str:name>/", capacity.state, name="return-state"),
    path("capacity/", capacity.index, name="capacity"),
    path("goodput/", goodput.index, name="goodput"),
    path("machines/<str:name>/identity", identity.machine, name="machine-identity"),
    path("machines/<str:name>/claim", identity.claim, name="machine-claim"),
    path("machines/<str:name>/swap", identity.swap, name="machine-swap"),
    path("parts/", identity.find_part, name="parts"),
    path("parts/<path:serial>", identity.part, name="part"),
]
