# Pagemill's two images: `--target server` (the engine and its API) and `--target operator`.
#
#   docker build --target operator -t pagemill-operator .
#   docker build --target server -t pagemill-server .
#   docker build --target server --build-arg VARIANT=cpu --build-context models=$HOME/.cache/pagemill/models -t pagemill-server-cpu .
#
# Both install the same wheel with different extras. Each of torch, the other dependencies and the wheel has a layer
# of its own, so that a new wheel is all that a node fetches. Where no index can be reached, mount a folder
# of wheels and pass PIP_NO_INDEX=1 and PIP_FIND_LINKS=THE FOLDER. VERSION and REVISION are for the labels. docs/images.md has
# every build argument, what the images weigh and how soon they serve.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS base
RUN python3 -m venv --without-pip /opt/pagemill
# HOME and LOGNAME: libraries ask for them, and the user ids that a cluster chooses have no entry in /etc/passwd.
# Nothing needs to be written, so the root file system may be read-only.
ENV PATH=/opt/pagemill/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LOGNAME=pagemill

# What pyproject.toml asks for, as pip reads it. A stage of its own: an edit elsewhere in that file changes none of these.
FROM base AS requirements
COPY pyproject.toml /
RUN mkdir /requirements && python3 -c "import tomllib; project = tomllib.load(open('/pyproject.toml', 'rb'))['project']; \
    extras = project['optional-dependencies']; torch = [line for line in extras['server'] if line.startswith('torch')]; \
    [open(f'/requirements/{name}.txt', 'w').write('\n'.join([*project['dependencies'], *lines]) + '\n') \
     for name, lines in {**extras, 'torch': torch}.items()]" && touch -d @0 /requirements /requirements/*

FROM base AS wheel
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
COPY pyproject.toml README.md LICENSE /source/
COPY pagemill /source/pagemill
COPY operator /source/operator
COPY server /source/server
COPY kernels /source/kernels
# The CPU kernels that lie in the context (`make native`), where they are of these sources; else compiled here, where a compiler is
# or can be had. Without them torch computes.
RUN if [ "$(uname -m)" = x86_64 ] && ! python3 /source/kernels/pagemill_kernels/native/build.py && [ -z "$PIP_NO_INDEX" ]; then \
    apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; fi
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel /source

FROM base AS operator-dependencies
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
COPY --from=requirements /requirements/operator.txt /tmp/
RUN pip --python /opt/pagemill install --no-cache-dir -r /tmp/operator.txt

FROM operator-dependencies AS operator
COPY --from=wheel /wheel /tmp/wheel
RUN pip --python /opt/pagemill install --no-cache-dir --no-deps --no-index /tmp/wheel/*.whl
USER 65532:65532
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="Pagemill operator" \
      org.opencontainers.image.description="Turns LLMDeployments into pods that serve large language models" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["pagemill", "operator"]

FROM base AS server-dependencies
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
# gpu | cpu. PyTorch's own index has a CPU build, a tenth of the size: name it in TORCH_INDEX. The CUDA build runs on a
# CPU as well, and then what it never loads there is left out.
ARG VARIANT=gpu
ARG TORCH_INDEX
COPY --from=requirements /requirements/torch.txt /tmp/
RUN pip --python /opt/pagemill install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r /tmp/torch.txt \
 && if [ "$VARIANT" = cpu ]; then cd /opt/pagemill/lib/python3*/site-packages \
 && rm -rf triton torch/include torch/test torch/lib/libtorch_cuda_linalg.so \
 && rm -f nvidia/cudnn/lib/libcudnn_* nvidia/cu*/lib/libcusolver* nvidia/cu*/lib/libnvrtc*.alt.* nvidia/cu*/lib/libnvperf* \
          nvidia/cu*/lib/*.a nvidia/nvshmem/lib/*.a nvidia/nvshmem/lib/*.bc nvidia/nvshmem/lib/nvshmem_transport* \
 && find nvidia -name include -type d -prune -exec rm -rf {} + ; fi \
 && python -c "import torch; assert torch.ones(2, 2).matmul(torch.ones(2, 2)).sum() == 8"
# Triton compiles a launcher for each kernel with the machine's C compiler.
RUN if [ "$VARIANT" = gpu ]; then apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*; fi
COPY --from=requirements /requirements/server.txt /requirements/transformers.txt /tmp/
RUN pip --python /opt/pagemill install --no-cache-dir -r /tmp/server.txt -r /tmp/transformers.txt

# Models to put into the image, as org/name folders: none, unless `--build-context models=FOLDER` replaces this stage.
FROM scratch AS models
COPY LICENSE /.license

# Every image has two tiny random ones, for `helm test` and a first try.
FROM base AS tiny-models
COPY examples/tiny_models.py /
RUN python3 /tiny_models.py /models

FROM server-dependencies AS server
COPY --from=tiny-models /models /models
COPY --from=models / /models
# Triton writes the kernels that it has compiled; /tmp is what a pod with a read-only root can write to.
ENV PAGEMILL_MODELS=/models TRITON_CACHE_DIR=/tmp/triton
COPY --from=wheel /wheel /tmp/wheel
RUN pip --python /opt/pagemill install --no-cache-dir --no-deps --no-index /tmp/wheel/*.whl
USER 65532:65532
EXPOSE 8000 8001
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="Pagemill server" \
      org.opencontainers.image.description="A paged-attention engine behind an OpenAI-compatible API" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["pagemill", "serve"]
