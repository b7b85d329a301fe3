# The gateway in an image, at the top of the repository:
#     docker build --tag produce-gateway:0.1.0 .
# It needs its configuration at /etc/produce-gateway/gateway.yaml and a volume at /var/lib/produce-gateway, and runs as a
# user without rights on a read-only file system: docs/how-to/containers.md. The audit has an image of its own, with
# Java and Spark: deploy/spark/Dockerfile.

FROM python:3.11-slim-trixie AS build
WORKDIR /source
# For the compiled part of the hot path (setup.py); the image itself has no compiler.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# Dependencies first: a change of the program alone leaves this layer as it is. All that pip fetches is what its lock
# files have the sum of (tools/locks.py).
COPY requirements requirements
RUN python -m venv --without-pip /opt/produce-gateway \
 && pip --python /opt/produce-gateway install --no-cache-dir --only-binary :all: \
        --require-hashes --requirement requirements/run.txt \
 && pip install --no-cache-dir --only-binary :all: --require-hashes --requirement requirements/build.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY gateway gateway
COPY policies policies
COPY protocol protocol
# pip compiles what it installs: a read-only file system keeps no bytecode.
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir wheels . \
 && pip --python /opt/produce-gateway install --no-cache-dir --no-deps --no-index wheels/*.whl

FROM python:3.11-slim-trixie
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="produce-gateway" \
      org.opencontainers.image.description="A Kafka wire protocol gateway on the produce path: meters every byte and keeps producers within their limits." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="python:3.11-slim-trixie"
RUN groupadd --system --gid 10001 produce-gateway \
 && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/produce-gateway \
        --shell /usr/sbin/nologin produce-gateway \
 && install --directory --owner 10001 --group 10001 --mode 0750 /var/lib/produce-gateway
COPY --from=build /opt/produce-gateway /opt/produce-gateway
ENV PATH=/opt/produce-gateway/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# By number, so that Kubernetes can tell that it isn't root (runAsNonRoot).
USER 10001:10001
# The spool (usage_log.spool_dir: ./spool) and, with internal_topics: none, policies that were changed at run time.
WORKDIR /var/lib/produce-gateway
VOLUME /var/lib/produce-gateway
# Bootstrap, brokers 0 to 9 (port + 1 + node id), admin server, health port.
EXPOSE 19092 19093-19102 9190 9295
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --start-interval=2s --retries=3 \
    CMD ["produce-gateway", "health", "/etc/produce-gateway/gateway.yaml"]
ENTRYPOINT ["produce-gateway"]
CMD ["serve", "/etc/produce-gateway/gateway.yaml"]
