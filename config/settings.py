"""Coalmine's settings, read from the environment; `.env.example` explains each variable.

One file serves both shapes. With nothing set it is the embedded one: SQLite, an
in-memory broker, everything in one process. `DATABASE_URL` and `REDIS_URL` make
it the full-size one. A value that is not understood stops the start.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery.schedules import schedule
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from config import environment, tickets
from config.theme import UNFOLD  # noqa: F401 - a setting of the admin theme

BASE_DIR = Path(__file__).resolve().parent.parent
environment.env.read_env(BASE_DIR / ".env")  # never overrides a variable that is set

DATA_DIR = Path(environment.text("DATA_DIR", default=str(BASE_DIR / "var"))).absolute()
DATA_DIR.mkdir(parents=True, exist_ok=True)

DEBUG = environment.flag("DEBUG", default=False)

# --- database ---------------------------------------------------------------

DATABASE_URL = environment.url(
    "DATABASE_URL",
    default=f"sqlite:///{DATA_DIR / 'coalmine.sqlite3'}",
    schemes=("sqlite", "postgres", "postgresql"),
)
DATABASES = {"default": environment.env.db_url_config(DATABASE_URL)}
IS_EMBEDDED = DATABASES["default"]["ENGINE"].endswith("sqlite3")

if IS_EMBEDDED:
    # IMMEDIATE takes the write lock when a transaction begins: a deferred one
    # that reads and then writes fails at once, however long the time-out.
    DATABASES["default"]["OPTIONS"] = {
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; "
        "PRAGMA foreign_keys=ON;",
    }
else:
    # A database that is away is told to who asks, soon; nobody waits for its return.
    patience = 5
    options = DATABASES["default"].setdefault("OPTIONS", {})
    options.setdefault("connect_timeout", patience)
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
    if environment.flag("DATABASE_POOL", default=False):
        size = environment.whole("DATABASE_POOL_SIZE", default=8, low=1, high=200)
        options["pool"] = {"min_size": 1, "max_size": size, "timeout": patience}
        DATABASES["default"]["CONN_MAX_AGE"] = 0  # a pool keeps the connections itself
    else:
        DATABASES["default"]["CONN_MAX_AGE"] = environment.whole(
            "CONN_MAX_AGE", default=60, low=0, high=86400
        )

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- secrets and hosts ------------------------------------------------------


def kept_secret(path: Path) -> str:
    """The secret in this file; the first process makes it, readable by its owner only."""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with open(draft, "w", opener=owner_only) as file:
            file.write(secrets.token_urlsafe(50))
        with suppress(FileExistsError):  # another process was first: its secret stands
            os.link(draft, path)
        draft.unlink()
    secret = path.read_text().strip()
    if len(secret) < 50:
        raise ImproperlyConfigured(
            f"{path} holds {len(secret)} characters, at least 50 are needed; remove it"
        )
    return secret


def owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


SECRET_KEY = environment.text("SECRET_KEY")
if not SECRET_KEY and (IS_EMBEDDED or DEBUG):
    SECRET_KEY = kept_secret(DATA_DIR / "secret_key")
if not SECRET_KEY:
    raise ImproperlyConfigured(
        "SECRET_KEY is not set; a PostgreSQL installation with DEBUG off needs one of its own "
        "(any 50 random characters, the same in every process)"
    )

ALLOWED_HOSTS = environment.items("ALLOWED_HOSTS", default=("localhost", "127.0.0.1", "[::1]"))
CSRF_TRUSTED_ORIGINS = environment.items("CSRF_TRUSTED_ORIGINS")
if environment.flag("BEHIND_HTTPS_PROXY", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = 31536000
SESSION_COOKIE_HTTPONLY = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# --- applications -----------------------------------------------------------

INSTALLED_APPS = [
    "unfold",  # before django.contrib.admin, whose templates it replaces
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "knox",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "fleet",
    "rollouts",
    "simulation",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "config.middleware.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "config.middleware.DomainProblems",
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
LOGIN_URL = "admin:login"
# Where a login leads that was not sent from a page.
LOGIN_REDIRECT_URL = "rollouts:home"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# --- language and time ------------------------------------------------------

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
FORMAT_MODULE_PATH = "config.formats"
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

# --- static files -----------------------------------------------------------

STATIC_URL = "/static/"
STATIC_ROOT = DATA_DIR / "static"
STATIC_ROOT.mkdir(exist_ok=True)
# The embedded shape serves files from where they are installed; an image collects them.
WHITENOISE_USE_FINDERS = IS_EMBEDDED or DEBUG

# --- REST -------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "knox.auth.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["config.wire.AnyTextJSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["config.wire.BoundedJSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "config.pagination.CursorPagination",
    "PAGE_SIZE": 100,
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "config.api.problem_handler",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

# A whole telemetry batch has to fit; a longer body is refused unread.
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 2**20

REST_KNOX = {"AUTH_HEADER_PREFIX": "Token", "TOKEN_TTL": None}

SPECTACULAR_SETTINGS = {
    "TITLE": "Coalmine",
    "DESCRIPTION": "Firmware canary rollouts: inventory, version history, telemetry, evidence.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    # 150 operations drawn open keep a browser busy for half a minute.
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "docExpansion": "none"},
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "TriageEnum": "rollouts.models.Attempt.Triage",
        "RolloutStatusEnum": "rollouts.api.serializers.ROLLOUT_STATUSES",
        "WaveStatusEnum": "rollouts.api.serializers.WAVE_STATUSES",
        "AttemptStatusEnum": "rollouts.api.serializers.ATTEMPT_STATUSES",
        "BundleStatusEnum": "fleet.models.BundleStatus",
        "ChangeKindEnum": "fleet.models.Change.Kind",
        "ClaimKindEnum": "fleet.models.MachineClaim.Kind",
        "FaultKindEnum": "fleet.models.FaultSignature.Kind",
        "IncidentEventKindEnum": "fleet.models.IncidentEvent.Kind",
        "ImpactOutcomeEnum": "fleet.models.JobImpact.Outcome",
        "RepairOutcomeEnum": "fleet.models.Repair.Outcome",
        "RepairStatusEnum": "fleet.models.Repair.Status",
        "RepairKindEnum": "fleet.models.RepairKind",
        "OrderableKindEnum": "fleet.api.repairs.ORDERABLE_KINDS",
        "GateStatusEnum": "fleet.models.Gate.Status",
        "ReportedKindEnum": "rollouts.api.changes.REPORTED",
        "OrderKindEnum": "rollouts.models.Order.Kind",
        "DecisionKindEnum": "rollouts.api.serializers.DECISION_KINDS",
        "RolloutKindEnum": "rollouts.models.Rollout.Kind",
        "WaveKindEnum": "rollouts.models.Wave.Kind",
        "EvaluationKindEnum": "rollouts.models.Evaluation.Kind",
        "StandingEnum": "rollouts.api.compliance.STANDINGS",
    },
}

# --- Celery -----------------------------------------------------------------

REDIS_URL = environment.url("REDIS_URL", schemes=("redis", "rediss", "redis+socket"))
CELERY_BROKER_URL = environment.url(
    "CELERY_BROKER_URL",
    default=REDIS_URL or "memory://localhost/",
    schemes=("memory", "redis", "rediss", "redis+socket"),
)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = (
    {"polling_interval": 0.05}
    if CELERY_BROKER_URL.startswith("memory:")
    # A lost worker's messages come back after the visibility time-out; with the
    # default sweep that would take minutes. Longer than any task may run.
    else {
        "visibility_timeout": 120,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "socket_connect_timeout": 2,
    }
)
CELERY_TIMEZONE = "UTC"
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SOFT_TIME_LIMIT = 45
CELERY_TASK_TIME_LIMIT = 60
# A broker that is down costs a hint, not a request: publishing gives up quickly.
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_max": 0.2}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DIRECT = True  # a queue of its own, for the roll call that shows whether it is stuck
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True

# The schedule only ticks; what is due, and when, stands in the database.
SWEEP_SECONDS = environment.whole("SWEEP_SECONDS", default=5, low=1, high=300)
CELERY_BEAT_SCHEDULE: dict[str, dict[str, Any]] = {}


def tick(task: str, *, seconds: float) -> None:
    """Run a task every few seconds; a tick that no worker took in time is dropped."""
    CELERY_BEAT_SCHEDULE[task] = {
        "task": task,
        "schedule": schedule(run_every=seconds),
        "options": {"expires": max(seconds, 5)},
    }


tick("rollouts.tasks.sweep", seconds=SWEEP_SECONDS)
tick("fleet.tasks.collect", seconds=SWEEP_SECONDS)
tick("rollouts.tasks.remind", seconds=6 * SWEEP_SECONDS)
tick("rollouts.tasks.look_outside", seconds=24 * SWEEP_SECONDS)
tick("fleet.tasks.heartbeat", seconds=6 * SWEEP_SECONDS)
tick("fleet.tasks.follow_up", seconds=2 * SWEEP_SECONDS)
tick("fleet.tasks.follow_gates", seconds=6 * SWEEP_SECONDS)
tick("fleet.tasks.watch_jobs", seconds=6 * SWEEP_SECONDS)
tick("fleet.tasks.watch_drains", seconds=6 * SWEEP_SECONDS)
tick("fleet.tasks.watch", seconds=6 * SWEEP_SECONDS)
tick("fleet.tasks.tell_scheduler", seconds=2 * SWEEP_SECONDS)
tick("fleet.tasks.check_holds", seconds=12 * SWEEP_SECONDS)
tick("fleet.tasks.summarise", seconds=60 * SWEEP_SECONDS)
tick("fleet.tasks.keep_capacity", seconds=120 * SWEEP_SECONDS)
tick("fleet.tasks.sweep_evidence", seconds=720 * SWEEP_SECONDS)

# --- people -----------------------------------------------------------------

# A site with one person turns this on; every approval record shows who wrote and who approved.
ALLOW_SELF_APPROVAL = environment.flag("ALLOW_SELF_APPROVAL", default=False)

# --- machines that break ----------------------------------------------------

# Whether faults take their machine out of work by the rule of their signature.
TAKE_OUT = environment.flag("TAKE_OUT", default=False)
# The scheduler's partition in which the checks of gates run, on machines that take no other work.
GATE_PARTITION = environment.text("GATE_PARTITION")

# --- adapters and simulation ------------------------------------------------

INSTALLER = environment.dotted("INSTALLER", default="simulation.adapters.VirtualInstaller")
SCHEDULER = environment.dotted("SCHEDULER", default="simulation.adapters.VirtualScheduler")
COLLECTOR = environment.dotted("COLLECTOR", default="simulation.adapters.VirtualCollector")
# Measures single machines in idle gaps, where a plan asks for it; empty: there is none.
PROBER = environment.dotted_or_none(
    "PROBER",
    default="simulation.prober.VirtualProber" if INSTALLER.startswith("simulation.") else "none",
)
# What the fleet may ask of open rollouts, which it does not import.
OPEN_ARMS = "rollouts.arms.OpenArms"

# --- evidence and ticket systems ---------------------------------------------

EVIDENCE_STORE = environment.dotted(
    "EVIDENCE_STORE", default="fleet.adapters.evidence_files.EvidenceFiles"
)
EVIDENCE_MOST_BYTES = 2**20 * environment.whole("EVIDENCE_MOST_MIB", default=64, low=1, high=4096)
FILE_UPLOAD_HANDLERS = [
    "config.uploads.BoundedUpload",
    "django.core.files.uploadhandler.MemoryFileUploadHandler",
    "django.core.files.uploadhandler.TemporaryFileUploadHandler",
]

TICKET_SYSTEMS = tickets.systems(environment.items("TICKET_SYSTEMS"))
TICKET_SECRETS = tickets.keys(environment.items("TICKET_SECRETS"), names=TICKET_SYSTEMS)
if TICKET_SYSTEMS:
    tick("fleet.tasks.tell_tickets", seconds=2 * SWEEP_SECONDS)
WEBHOOK_HOSTS = environment.items("WEBHOOK_HOSTS")
WEBHOOK_PORTS = tickets.ports(environment.items("WEBHOOK_PORTS", default=("443",)))
WEBHOOK_NETWORKS = tickets.networks(environment.items("WEBHOOK_NETWORKS"))

SIMULATION_ENABLED = environment.flag("SIMULATION_ENABLED", default=IS_EMBEDDED)
if SIMULATION_ENABLED:
    tick("simulation.tasks.reconcile", seconds=SWEEP_SECONDS)

# --- cache and log ----------------------------------------------------------

if REDIS_URL and not REDIS_URL.startswith("redis+socket"):
    CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": REDIS_URL,
            "KEY_PREFIX": "coalmine",
        }
    }

LOG_LEVEL = environment.choice(
    "LOG_LEVEL", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR")
)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "config.logs.KeyValueFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        # Celery and kombu tell of every tick at INFO; the product's records hold what happened.
        "celery": {"level": "WARNING"},
        "kombu": {"level": "WARNING"},
        "waitress": {"level": "WARNING"},
        "django.request": {"level": "ERROR"},
        # Without this, DEBUG turns on Django's own second handler.
        "django": {"handlers": [], "level": LOG_LEVEL, "propagate": True},
    },
}
