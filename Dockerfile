# The server in a small image: built in one stage, run in another, by nobody in particular.
#
#   docker build -t aviso-server .
#   docker run -p 8000:8000 -v aviso-data:/var/lib/aviso-server aviso-server
#
# Mount your own configuration at /etc/aviso_server/config.yaml, or set AVISOSERVER_... variables. The archive is off until
# archive.enabled says otherwise: -e AVISOSERVER_ARCHIVE__ENABLED=true, with 4 GB of memory for the container.

ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
# Extras of the package, separated by commas. java is what the archive needs; without it the image is 100 MB smaller.
ARG EXTRAS=otlp,java
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY packages ./packages
COPY src ./src
RUN python -m venv /opt/aviso-server \
    && /opt/aviso-server/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt ./packages/pyspark-aviso ".[${EXTRAS}]" \
    && /opt/aviso-server/bin/aviso-server version

FROM ${PYTHON}
RUN groupadd --gid 10001 aviso \
    && useradd --uid 10001 --gid aviso --home-dir /var/lib/aviso-server --shell /usr/sbin/nologin aviso \
    && install --directory --owner aviso --group aviso --mode 0750 /var/lib/aviso-server
COPY --from=build /opt/aviso-server /opt/aviso-server
COPY deploy/docker/config.yaml /etc/aviso_server/config.yaml
ENV PATH=/opt/aviso-server/bin:$PATH \
    HOME=/var/lib/aviso-server \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/aviso-server
VOLUME /var/lib/aviso-server
USER 10001:10001
EXPOSE 8000 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["aviso-server", "health"]
ENTRYPOINT ["aviso-server"]
CMD ["serve"]
