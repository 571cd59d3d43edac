# A site of a fleet: the node that trains and adapts on the site's own data, and the server of its live models.
# Data, state and keys are folders of the host; nothing of them is in the image.
#
#   docker build -t acclimate-site .
#   docker run --init --user "$(id -u):$(id -g)" -v $PWD/sites/north:/site:ro -v $PWD/data:/data:ro -v $PWD/state:/state acclimate-site

FROM python:3.12-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
# The build of torch that pip finds; another one, such as PyTorch's smaller CPU build: --build-arg TORCH_INDEX=its index
ARG TORCH_INDEX=
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
COPY --from=wheel /wheels /tmp/wheels
RUN wheel="$(ls /tmp/wheels/*.whl)" \
    && pip install --no-cache-dir -c /tmp/constraints.txt "${wheel}[flower,serve,images,tables,text]" \
    && useradd --uid 10001 --create-home site \
    && mkdir /site /data /state && chown site /state
# Copies of data that acclimate parses stay in the state folder, so that `acclimate fleet forget` finds them. Any user may run the image.
ENV ACCLIMATE_CACHE=/state/cache ACCLIMATE_SECRETS=/state/secrets HOME=/tmp PYTHONUNBUFFERED=1
USER site
WORKDIR /state
VOLUME /state
ENTRYPOINT ["sh", "/site/start.sh", "/data", "/state"]
