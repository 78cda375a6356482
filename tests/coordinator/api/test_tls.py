"""`sandhog serve` with a certificate."""

import datetime
import os
import signal
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.commands.serving import Serving, run_server
from coordinator.errors import ConfigError
from tests.cluster.commands import SANDHOG


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of its own authority for localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key_text(key, serialization.NoEncryption()))
    return paths


def key_text(key: ec.EllipticCurvePrivateKey, lock: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


def test_it_speaks_https_with_its_certificate(
    certificate: tuple[Path, Path], state_dir: Path, redis_url: str, until: Callable[..., None]
) -> None:
    cert, key = certificate
    log = state_dir / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*SANDHOG, "serve", "--port", "0", "--tls-cert", str(cert), "--tls-key", str(key)],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(state_dir),
                "SANDHOG_STATE_DIR": str(state_dir),
                "SANDHOG_REDIS_URL": redis_url,
                "SANDHOG_DRAIN_S": "0",
                "PYTHONPATH": str(Path(__file__).parents[3]),
            },
            stdin=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
    try:
        until(lambda: "serving at" in log.read_text() or process.poll() is not None, "it listens", 90)
        url = log.read_text().split("serving at ")[1].split()[0]
        assert url.startswith("https://127.0.0.1:"), "the line says how it is spoken to"
        address = url.replace("127.0.0.1", "localhost")
        trusting = ssl.create_default_context(cafile=str(cert))
        assert httpx2.get(f"{address}/healthz", verify=trusting, timeout=60, trust_env=False).status_code == 200
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{address}/healthz", timeout=60, trust_env=False)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()


def test_what_is_no_certificate_with_its_key_is_said(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, _ = certificate
    with pytest.raises(ConfigError, match="belong together"):
        run_server(Serving("127.0.0.1", 0, tls_cert=cert))
    locked = tmp_path / "locked.pem"
    other = ec.generate_private_key(ec.SECP256R1())
    locked.write_bytes(key_text(other, serialization.BestAvailableEncryption(b"word")))
    unfitting = tmp_path / "other.pem"
    unfitting.write_bytes(key_text(other, serialization.NoEncryption()))
    for bad in (locked, unfitting, tmp_path / "missing.pem", cert):
        with pytest.raises(ConfigError, match="no certificate with its key"):
            run_server(Serving("127.0.0.1", 0, tls_cert=cert, tls_key=bad))
