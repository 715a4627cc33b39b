"""Wiring: settings, routes, the task queue; the only package that knows every app."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
