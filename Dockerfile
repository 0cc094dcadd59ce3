# ratoon on Debian 12, built in one stage and run in another, as a user who owns nothing (doc/install.md).
#   docker build -t ratoon .
#   docker build -t ratoon --build-arg CUDA=yes .          with kernels for NVIDIA cards
#   docker run --rm -it -v "$PWD/models:/models:ro" ratoon chat -m /models/model.gguf
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Makefile VERSION ./
COPY tests/tests.mk tests/tests.mk
COPY bench/bench.mk bench/bench.mk
RUN make setup-deb
COPY . .
ARG CUDA=no
RUN [ "$CUDA" = no ] || make -j"$(nproc)" cuda
RUN make -j"$(nproc)" deb

FROM debian:12-slim
RUN --mount=type=bind,from=build,source=/src/build,target=/packages apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates /packages/ratoon_*.deb \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --create-home --home-dir /var/lib/ratoon --shell /usr/sbin/nologin ratoon \
    && install -d -o ratoon -g ratoon -m 700 /var/lib/ratoon/cache /var/lib/ratoon/models
USER ratoon
WORKDIR /var/lib/ratoon
ENV HF_HOME=/var/lib/ratoon/models RATOON_CACHE_DIR=/var/lib/ratoon/cache \
    RATOON_HOST=0.0.0.0 RATOON_GENERATE_KEY=/var/lib/ratoon/api-key
VOLUME /var/lib/ratoon
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=15s --start-period=5m CMD ["ratoon", "health"]
ENTRYPOINT ["ratoon"]
CMD ["serve"]
