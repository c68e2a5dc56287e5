"""What `QUIRE_CLUSTER_TLS` names: a private key and its certificate, as in docs/cluster.md."""

from __future__ import annotations

import subprocess
from pathlib import Path


def write_pem(path: Path) -> str:
    """Write the file; return its path."""
    command = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "36500"]
    command += ["-subj", "/CN=quire", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    with path.open("a") as file:
        file.write(Path(f"{path}.crt").read_text())
    return str(path)
