# One image for the device plugin, the scheduler extender and the command line; for amd64 and arm64.
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg REVISION="$(git rev-parse HEAD)" --tag NAME --push .
# Every dependency comes as a wheel with its hash from locks/, so nothing is compiled and nothing unknown gets in.

# The digest is the tag's image index, which holds both platforms. Move tag and digest together.
ARG PYTHON=python:3.13.16-slim-trixie@sha256:70729b46c69b4f1e97c4822c1af3df53a1476cf5ddc6c087c0c10bc3a5678c2f

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all: PIP_ROOT_USER_ACTION=ignore
COPY locks/runtime.txt /src/locks/runtime.txt
RUN python -m venv --without-pip /opt/neuron-plugin \
    && pip --python /opt/neuron-plugin/bin/python install --no-compile --require-hashes --requirement /src/locks/runtime.txt
# The package is pure Python: copied, not built, so that no build backend has to be trusted.
COPY neuron_plugin/ /opt/neuron-plugin/lib/python3.13/site-packages/neuron_plugin/
COPY LICENSE /opt/neuron-plugin/
# The commit, for logs and metrics; the label of the image below is not visible from inside.
ARG REVISION=unknown
RUN printf '%s\n' "${REVISION}" > /opt/neuron-plugin/lib/python3.13/site-packages/neuron_plugin/REVISION
RUN printf '%s\n' '#!/opt/neuron-plugin/bin/python' 'import sys' 'from neuron_plugin.__main__ import entry' 'sys.exit(entry())' \
        > /opt/neuron-plugin/bin/neuron-plugin \
    && chmod 0755 /opt/neuron-plugin/bin/neuron-plugin
# Bytecode that is never checked against its source: the root is read-only, and a start without takes twice as long.
RUN /opt/neuron-plugin/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/neuron-plugin/lib

FROM ${PYTHON}
ARG REVISION=unknown
LABEL org.opencontainers.image.title="neuron-plugin" \
      org.opencontainers.image.description="AWS Neuron devices for Kubernetes: device plugin, scheduler extender, command line" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}"
# The base image has the standard library without bytecode.
RUN PIP_ROOT_USER_ACTION=ignore pip uninstall --yes pip \
    && rm -r /usr/local/lib/python3.13/ensurepip \
    && python -m compileall -q --invalidation-mode unchecked-hash /usr/local/lib/python3.13
COPY --from=build /opt/neuron-plugin /opt/neuron-plugin
ENV PATH=/opt/neuron-plugin/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Fails the build if libudev, which hot-plug hints come through, is not in the base image.
RUN ["python", "-c", "import pyudev; pyudev.Context()"]
# The device plugin's pod overrides this: the kubelet's sockets and the driver's attributes are root's.
USER 65532:65532
ENTRYPOINT ["neuron-plugin"]
CMD ["--help"]
