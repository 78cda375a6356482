# shellcheck shell=bash
# The default box image: from a public base image where a registry answers, else from the distribution's packages.

BOX_IMAGE=sandhog-box:latest
BASE_IMAGE=debian:stable-slim
BOX_PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# recipe_hash: changes whenever the image has to be built anew.
recipe_hash() {
    cat "$DEPLOY/box-packages.txt" "$DEPLOY/box.Dockerfile" "$DEPLOY/lib/image.sh" | sha256sum | cut -c1-16
}

# image_is_current: true when the engine holds the image of this recipe.
image_is_current() {
    local found
    found=$(timeout 20 docker image inspect --format '{{index .Config.Labels "sandhog.image"}}' "$BOX_IMAGE" 2>/dev/null) &&
        [ "$found" = "$(recipe_hash)" ]
}

# ensure_image: builds under a name of its own, then moves the tag, so that running sessions keep a whole image.
ensure_image() {
    image_is_current && return
    local scratch fresh old
    old=$(docker image inspect --format '{{.Id}}' "$BOX_IMAGE" 2>/dev/null) || old=
    scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/sandhog-image.XXXXXX")
    fresh=sandhog-box:building-$$
    # shellcheck disable=SC2064 # the names of now, not those at the end
    trap "clear_scratch '$scratch' '$fresh'" EXIT
    trap 'exit 130' INT TERM
    if ! build_from_base "$scratch" "$fresh"; then
        if [ -n "$old" ] && ! may_install; then
            say "using the $BOX_IMAGE that is there, of an earlier recipe"
            return
        fi
        build_from_distribution "$scratch" "$fresh"
    fi
    quietly "the check of the new image" docker run --rm --network none "$fresh" \
        sh -c 'bash --version && git --version && gcc --version && make --version && python3 -m pytest --version' ||
        die "the engine cannot run the new box image" "See that this works and run it again:  docker run --rm $BASE_IMAGE true"
    docker tag "$fresh" "$BOX_IMAGE"
    clear_scratch "$scratch" "$fresh"
    trap - EXIT INT TERM
    if [ -n "$old" ]; then remove_untagged "$old"; fi
    say "box image $BOX_IMAGE ready"
}

# remove_untagged IMAGE: keeps an image that has another name or that a box still runs on.
remove_untagged() {
    if [ "$(docker image inspect --format '{{len .RepoTags}}' "$1" 2>/dev/null)" = 0 ]; then
        docker image rm "$1" >/dev/null 2>&1 || true
    fi
}

# clear_scratch DIRECTORY TAG: takes away what a build left, whole or broken off.
clear_scratch() {
    local mounted
    # debootstrap mounts /proc and /sys inside; never delete through a mount.
    while read -r mounted; do umount -l "$mounted" 2>/dev/null || true; done < <(
        awk -v top="$1/" 'index($2, top) == 1 {print $2}' /proc/mounts | sort -r)
    rm -rf --one-file-system "$1"
    docker image rm "$2" >/dev/null 2>&1 || true
}

# host_ca_bundle: prints the file of certificate authorities this machine trusts; nothing when there is none.
host_ca_bundle() {
    local file
    for file in "${SSL_CERT_FILE:-}" "${CURL_CA_BUNDLE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
        if [ -n "$file" ] && [ -s "$file" ]; then
            printf '%s\n' "$file"
            return
        fi
    done
}

# build_from_base SCRATCH TAG: fails without harm where no registry answers.
build_from_base() {
    local context=$1/context ca pull_s=60
    # Someone who has the other way open need not wait long for a registry.
    if may_install; then pull_s=15; fi
    if ! docker image inspect "$BASE_IMAGE" >/dev/null 2>&1; then
        if ! timeout "$pull_s" docker pull --quiet "$BASE_IMAGE" >/dev/null 2>&1; then
            say "no registry gives $BASE_IMAGE"
            return 1
        fi
    fi
    say "building the box image from $BASE_IMAGE"
    mkdir "$context"
    ca=$(host_ca_bundle)
    cp "${ca:-/dev/null}" "$context/host-ca.crt"
    quietly "docker build" timeout 300 docker build --tag "$2" --file "$DEPLOY/box.Dockerfile" \
        --label "sandhog.image=$(recipe_hash)" \
        --build-arg "PACKAGES=$(paste -sd ' ' "$DEPLOY/box-packages.txt")" \
        --build-arg http_proxy --build-arg https_proxy --build-arg no_proxy "$context"
}

# archive_of RELEASE: prints the address that apt here is configured with for this release; fails when it has none.
archive_of() {
    local address
    # shellcheck disable=SC2016 # apt-get fills these names in
    address=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="$1" '$1 == release && $2 == "main" && $3 !~ /-/ {print $4; exit}')
    case $address in
    mirror+file:*) address=$(awk '/^(https?|file):/ {print $1; exit}' "${address#mirror+file:}") ;;
    esac
    [ -n "$address" ] && printf '%s\n' "$address"
}

# build_from_distribution SCRATCH TAG
build_from_distribution() { import_distribution "$1" "$2" "$DEPLOY/box-packages.txt" "$(recipe_hash)"; }

# import_distribution SCRATCH TAG PACKAGES_FILE RECIPE: an image by debootstrap of this machine's own release, signatures
# checked, labelled with the hash of its recipe.
import_distribution() {
    local root=$1/root release distribution archive keyring components=main
    may_install || die "the image $2 needs root to be built from packages, and no registry gives $BASE_IMAGE" \
        "Either make the image reachable:   docker pull $BASE_IMAGE" \
        "or run this command once as root"
    # shellcheck disable=SC1091
    read -r distribution release < <(. /etc/os-release && echo "${ID:-} ${VERSION_CODENAME:-}")
    case $distribution in
    debian) keyring=debian-archive-keyring ;;
    ubuntu) keyring=ubuntu-keyring components=main,universe ;;
    *) die "cannot build images from the packages of '$distribution'" \
        "Make a public base image reachable and run this again:  docker pull $BASE_IMAGE" ;;
    esac
    need_packages debootstrap "$keyring" gpgv
    case $distribution in
    debian) keyring=/usr/share/keyrings/debian-archive-keyring.gpg ;;
    ubuntu) keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg ;;
    esac
    archive=$(archive_of "$release") || { refresh_package_lists && archive=$(archive_of "$release"); } ||
        die "apt on this machine names no archive for '$release main'"
    say "building ${2%%:*} from the packages of $distribution $release"
    unpack_distribution "$root" "$release" "$components" "$archive" "$keyring" "$3"
    trim_root "$root"
    # /proc and /sys stay out whatever is mounted there: they would carry this machine into the image.
    tar -C "$root" --numeric-owner --one-file-system --exclude='./proc/*' --exclude='./sys/*' -c . | docker import \
        --change "ENV PATH=$BOX_PATH" --change 'ENV LANG=C.UTF-8' --change 'CMD ["bash"]' \
        --change "LABEL sandhog.image=$4" - "$2" >/dev/null || die "the image $2 could not be imported"
}

# need_packages NAME …: installs those of them that are missing.
need_packages() {
    local name missing=()
    for name in "$@"; do
        dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
    done
    [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}" || die "apt-get could not install ${missing[*]}"
}

# unpack_distribution ROOT RELEASE COMPONENTS ARCHIVE KEYRING PACKAGES_FILE
unpack_distribution() {
    local proxy apart=()
    # A mount namespace of its own takes debootstrap's mounts along when it ends.
    if unshare --mount true 2>/dev/null; then apart=(unshare --mount); fi
    mkdir -p "$1/etc/dpkg/dpkg.cfg.d"
    # The tree is thrown away after the import: nothing in it needs to survive a power cut.
    printf '%s\n' force-unsafe-io 'path-exclude=/usr/share/doc/*' 'path-exclude=/usr/share/man/*' \
        'path-exclude=/usr/share/locale/*' >"$1/etc/dpkg/dpkg.cfg.d/sandhog"
    proxy=$(apt-config shell value Acquire::http::Proxy) && eval "$proxy" && proxy=${value:-}
    if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export http_proxy="${http_proxy:-$proxy}"; fi
    quietly debootstrap "${apart[@]}" debootstrap --force-check-gpg --keyring="$5" --variant=minbase --components="$3" \
        --include="$(paste -sd , "$6")" "$2" "$1" "$4" ||
        die "the packages for the image could not be unpacked"
}

# trim_root ROOT: what only a machine that installs, documents or boots would need.
trim_root() {
    rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/usr/share/doc/* "$1"/usr/share/man/* \
        "$1"/usr/share/info/* "$1"/usr/share/locale/* "$1"/debootstrap "$1"/etc/apt/sources.list \
        "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/etc/machine-id "$1"/etc/dpkg/dpkg.cfg.d/sandhog
    mkdir -p "$1/var/cache/apt/archives/partial" "$1/var/lib/apt/lists/partial"
}
