#!/bin/sh
# Begins a coordinator's or worker's container: secrets become settings, and a worker gets its name.
set -eu

# A secret `sandhog_redis_url` is the setting SANDHOG_REDIS_URL; an empty file sets nothing.
for file in /run/secrets/sandhog_* /run/secrets/openai_api_key; do
    [ -s "$file" ] || continue
    name=$(basename "$file" | tr '[:lower:]' '[:upper:]')
    export "$name=$(cat "$file")"
done

# A worker that nobody named is named after its container: `sandhog-worker-2` stays the same when the container is made
# anew, so the node's next life adopts the boxes of the last one.
if [ "${2:-}${3:-}" = -mworker ] && [ -z "${SANDHOG_NODE:-}" ]; then
    SANDHOG_NODE=$(python -c '
import docker, os, re, socket
client = docker.from_env()
try:
    name = client.containers.get(socket.gethostname()).name
except docker.errors.DockerException:
    name = socket.gethostname()
prefix = os.environ.get("SANDHOG_NODE_PREFIX", "")
print(re.sub(r"[^A-Za-z0-9_-]", "-", f"{prefix}-{name}" if prefix else name)[-64:])')
    export SANDHOG_NODE
fi
exec "$@"
