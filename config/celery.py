"""The Celery application; its settings are the `CELERY_*` names of `config.settings`."""

import os

from celery import Celery
from celery.signals import celeryd_init, worker_ready
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("coalmine")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@celeryd_init.connect
def refuse_memory_broker(conf, **_: object) -> None:
    """A worker process of its own never sees another process's memory.

    Messages sent to it would be accepted and lost, so it does not start. The
    embedded worker does not send this signal.
    """
    if str(conf.broker_url).startswith("memory:"):
        raise SystemExit(
            f"CELERY_BROKER_URL is {conf.broker_url!r}, which no other process can reach; "
            "set REDIS_URL, or run `manage.py up`, which holds web, worker and beat in one process"
        )


@worker_ready.connect
def watch_oneself(**_: object) -> None:
    """A worker process of its own ends when it gets stuck; the embedded one is part of the site."""
    if not settings.IS_EMBEDDED:
        from config.pulse import Watchdog  # needs the models, which are not there at import

        Watchdog().start()
