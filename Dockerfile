# ratoon on Debian 12, built in one stage and run in another, as a user who owns nothing (doc/install.md).
#   docker build -t ratoon .
#   docker run --rm -it -v "$PWD/models:/models:ro" ratoon chat -m /models/model.gguf
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Makefile VERSION ./
COPY tests/tests.mk tests/tests.mk
COPY bench/bench.mk bench/bench.mk
RUN make setup
COPY . .
RUN make -j"$(nproc)" && make install DESTDIR=/out PREFIX=/usr/local

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends libjansson4 libpcre2-8-0 libutf8proc2 libxxhash0 libedit2 libmicrohttpd12 libcurl4 libssl3 ca-certificates \
    && rm -rf /var/lib/apt/lists/* && useradd --uid 10001 --user-group --create-home --home-dir /var/lib/ratoon --shell /usr/sbin/nologin ratoon \
    && install -d -o ratoon -g ratoon -m 700 /var/lib/ratoon/cache /var/lib/ratoon/models
COPY --from=build /out/usr/local/bin/ /usr/local/bin/
COPY --from=build /out/usr/local/share/ /usr/local/share/
USER ratoon
WORKDIR /var/lib/ratoon
ENV HF_HOME=/var/lib/ratoon/models RATOON_HOST=0.0.0.0 RATOON_CACHE_DIR=/var/lib/ratoon/cache
VOLUME /var/lib/ratoon/cache
VOLUME /var/lib/ratoon/models
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["ratoon"]
CMD ["serve"]
