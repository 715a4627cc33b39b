# One image for web, worker and beat; the command chooses.
FROM python:3.12-slim AS build
WORKDIR /app
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/coalmine
COPY requirements/runtime.txt requirements/runtime.txt
RUN /opt/coalmine/bin/pip install --require-hashes --requirement requirements/runtime.txt

FROM python:3.12-slim
ENV PATH=/opt/coalmine/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 DATA_DIR=/var/lib/coalmine
RUN useradd --system --uid 10001 --home-dir /var/lib/coalmine --create-home coalmine
WORKDIR /app
COPY --from=build /opt/coalmine /opt/coalmine
COPY . .
USER coalmine
# The files do not depend on the database; SQLite stands in while the image is built.
RUN python manage.py collectstatic --noinput && rm -f /var/lib/coalmine/secret_key
# A volume that is mounted here takes over whose folder it is.
RUN mkdir /var/lib/coalmine/evidence
EXPOSE 8000
CMD ["gunicorn", "config.wsgi", "--bind", "0.0.0.0:8000", "--worker-class", "gthread", "--workers", "2", "--threads", "4", "--access-logfile", "-"]
