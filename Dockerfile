# One small image per extra: docker build --build-arg EXTRA=router .   (router, bedrock, scorer, collector, kubernetes or lab)
#
# A mirror of the package index, if one is needed, comes as a secret and leaves no trace in the image:
#     docker build --secret id=pip_conf,src=/etc/pip.conf --build-arg EXTRA=router .
FROM python:3.11-slim-bookworm AS base

# The wheel of Evenload itself; the same for all extras, so it is built once.
FROM base AS wheel
RUN python -m venv /build
COPY requirements/build.txt /requirements/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    /build/bin/pip install --quiet --no-cache-dir --only-binary :all: --require-hashes -r /requirements/build.txt
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY services services
COPY lab lab
RUN /build/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /wheels .

# The environment: exactly the pinned set of the extra, and the wheel.
FROM base AS environment
ARG EXTRA=router
RUN python -m venv /opt/evenload
COPY requirements/${EXTRA}.txt /requirements.txt
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    /opt/evenload/bin/pip install --quiet --no-cache-dir --only-binary :all: --require-hashes -r /requirements.txt
COPY --from=wheel /wheels /wheels
# pip leaves last: what runs needs no installer.
RUN /opt/evenload/bin/pip install --quiet --no-cache-dir --no-index --no-deps /wheels/*.whl \
 && /opt/evenload/bin/python -m pip --quiet uninstall --yes setuptools pip

FROM base
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin evenload
COPY --from=environment /opt/evenload /opt/evenload
COPY deploy/healthcheck.py /usr/local/lib/evenload/healthcheck.py
ENV PATH=/opt/evenload/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
ENTRYPOINT ["evenload"]
CMD ["--help"]
