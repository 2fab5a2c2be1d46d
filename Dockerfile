# A volunteer, and a meeting point (docs/how-to/run-as-a-service.md):
#   docker build --target volunteer -t ftnode .
#   docker build --target bootstrap -t ftnode-bootstrap .
# PIP_ARGUMENTS: for pip, as another index with torch for CPUs only.
ARG PYTHON=3.11.11-slim-bookworm

FROM python:${PYTHON} AS build
ARG PIP_ARGUMENTS=""
# fastecdsa comes as source and wants the GMP library's header.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libgmp-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/ftnode
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY protocol protocol
COPY models models
COPY node node
COPY bootstrap bootstrap
COPY lab lab
RUN /opt/ftnode/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ${PIP_ARGUMENTS} ".[gpu]"

FROM python:${PYTHON} AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgmp10 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /data ftnode
COPY --from=build /opt/ftnode /opt/ftnode
ENV PATH=/opt/ftnode/bin:$PATH PYTHONUNBUFFERED=1
# Identities, remembered peers, shards and logs.
VOLUME /data
WORKDIR /data
USER 10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["ftnode"]
HEALTHCHECK --interval=30s --timeout=20s --start-period=3m --retries=3 CMD ["ftnode", "health", "--home", "/data"]

FROM base AS bootstrap
EXPOSE 31337/tcp
CMD ["bootstrap", "--metrics", "none", "--home", "/data"]

FROM base AS volunteer
EXPOSE 31338/tcp
# What it joins and gives comes after the image's name; see docs/how-to/run-as-a-service.md.
CMD ["join", "--help"]
