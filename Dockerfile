# The node as an image: the program, the policy it starts with, and nothing to log in with.
#
#   docker compose up                  builds it with the images below, from a registry
#   make image                         takes the program of `make build` and its libraries instead: no registry
#
# Three arguments select one (scripts/image.sh):
#   BINARY_FROM      build: compile it here; prebuilt: take image/ of the build context
#   BUILDER_IMAGE    image of the compiler
#   RUNTIME_IMAGE    image at run time: needs glibc, libstdc++ and CA certificates; scratch if image/ brings them
#
# `--target bench` is the bench, for the link between the regions of docker-compose.regions.yml.
#
# There is no `# syntax=` line: BuildKit would fetch that from a registry too.
ARG BUILDER_IMAGE=docker.io/library/rust:1.95-bookworm
ARG RUNTIME_IMAGE=gcr.io/distroless/cc-debian12:nonroot
ARG BINARY_FROM=build

FROM ${BUILDER_IMAGE} AS build
RUN apt-get update -q && apt-get install -q -y --no-install-recommends libclang-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
# Downloads and builds of cargo are kept between builds, outside the image.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/target \
    CARGO_TARGET_DIR=/target cargo build --profile shipped --locked --bin trust-fabric && \
    scripts/image-tree.sh /target/shipped/trust-fabric /build/image

FROM build AS build-bench
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/target \
    CARGO_TARGET_DIR=/target cargo build --release --locked --bin trust-fabric-bench && \
    strip --strip-debug -o /build/trust-fabric-bench /target/release/trust-fabric-bench

FROM ${RUNTIME_IMAGE} AS bench
COPY --from=build-bench /build/trust-fabric-bench /usr/local/bin/
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/trust-fabric-bench"]

FROM scratch AS prebuilt
COPY image /build/image

FROM ${BINARY_FROM} AS binary

FROM ${RUNTIME_IMAGE}
COPY --from=binary /build/image/root /
# Volumes take over the owner and the mode of what they are mounted on: 65532, 0700.
COPY --from=binary --chown=65532:65532 /build/image/own /
USER 65532:65532
# 8693: plain, for this container only; 8694: TLS with client certificates; 8695: node to node.
EXPOSE 8694 8695
ENTRYPOINT ["/usr/local/bin/trust-fabric"]
CMD ["serve", "--config", "/etc/trust-fabric/trust-fabric.toml"]
HEALTHCHECK --interval=5s --timeout=5s --retries=3 --start-period=60s CMD ["/usr/local/bin/trust-fabric", "health"]
