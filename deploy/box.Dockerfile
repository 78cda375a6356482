# The default box image, from a public base image. deploy/lib/image.sh builds it and gives the packages.
FROM debian:stable-slim
ARG PACKAGES
COPY host-ca.crt /tmp/host-ca.crt
RUN set -eu; \
    if [ -s /tmp/host-ca.crt ]; then ca="-o Acquire::https::CaInfo=/tmp/host-ca.crt"; else ca=""; fi; \
    apt-get $ca -q update; \
    DEBIAN_FRONTEND=noninteractive apt-get $ca -q install -y --no-install-recommends $PACKAGES; \
    rm -rf /tmp/host-ca.crt /var/lib/apt/lists/* /var/cache/apt/* /usr/share/doc/* /usr/share/man/*
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["bash"]
