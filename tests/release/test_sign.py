"""Signatures of a release: those of real tools, and what is refused."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sign import Asked, SigningError, check_digests, sign, verify
from wheels import DIGESTS, source_date


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder as `make wheels` leaves it."""
    folder = tmp_path / "dist"
    folder.mkdir()
    lines: list[str] = []
    for name in ("a-1-py3-none-any.whl", "b-1-py3-none-any.whl"):
        (folder / name).write_bytes(name.encode())
        lines.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n")
    (folder / DIGESTS).write_text("".join(lines))
    return folder


def ssh_key(tmp_path: Path, name: str) -> Path:
    key = tmp_path / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key], check=True)
    return key


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_ssh_signs_and_who_signed_is_checked(dist: Path, tmp_path: Path) -> None:
    mine, other = (ssh_key(tmp_path, name) for name in ("mine", "other"))
    signers = tmp_path / "signers"
    signers.write_text(f"me@example.org {mine.with_suffix('.pub').read_text()}")
    sign(dist, "ssh", identity=str(mine))
    assert verify(dist, "ssh", identity="me@example.org", signers=str(signers)).name == f"{DIGESTS}.sig"
    with pytest.raises(SigningError):
        verify(dist, "ssh", identity="you@example.org", signers=str(signers))
    sign(dist, "ssh", identity=str(other))
    with pytest.raises(SigningError):
        verify(dist, "ssh", identity="me@example.org", signers=str(signers))


@pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not installed")
def test_gpg_signs_and_who_signed_is_checked(dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    for name in ("mine", "other"):
        made = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", f"{name}@example.org", "ed25519", "sign"]
        subprocess.run(made, check=True, capture_output=True)
    listed = subprocess.run(["gpg", "--list-keys", "--with-colons"], check=True, capture_output=True, text=True).stdout
    mine, other = (line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
    try:
        sign(dist, "gpg", identity=mine)
        assert verify(dist, "gpg", identity=mine).name == f"{DIGESTS}.asc"
        with pytest.raises(SigningError, match="is not by"):
            verify(dist, "gpg", identity=other)
        (dist / DIGESTS).write_text((dist / DIGESTS).read_text().replace("  a", "  ./a"))
        with pytest.raises(SigningError):
            verify(dist, "gpg", identity=mine)
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], check=False)


SIGSTORE = """
import pathlib, sys
verb, *options = sys.argv[1:]
bundle, digests = pathlib.Path(options[options.index("--bundle") + 1]), pathlib.Path(options[-1])
if verb == "sign":
    bundle.write_bytes(digests.read_bytes())
else:
    who = options[options.index("--cert-identity") + 1], options[options.index("--cert-oidc-issuer") + 1]
    assert options[0] == "identity" and who == ("me@example.org", "https://github.com/login/oauth"), options
    sys.exit(bundle.read_bytes() != digests.read_bytes())
"""


def test_sigstore_is_called_by_its_interface(dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub: the real one asks a person who they are, over the network."""
    (tmp_path / "sigstore.py").write_text(SIGSTORE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    sign(dist, "sigstore", identity="")
    assert verify(dist, "sigstore", identity="me@example.org").name == f"{DIGESTS}.sigstore.json"
    with pytest.raises(SigningError):
        verify(dist, "sigstore", identity="you@example.org")


def test_files_are_compared_before_anything_is_signed(dist: Path) -> None:
    assert check_digests(dist) == dist / DIGESTS
    (dist / "a-1-py3-none-any.whl").write_bytes(b"another")
    for act in (sign, verify):
        with pytest.raises(SigningError, match=r"a-1-py3-none-any\.whl is not the file"):
            act(dist, "ssh", identity="none")
    (dist / "a-1-py3-none-any.whl").unlink()
    with pytest.raises(SigningError, match="is not there"):
        check_digests(dist)


def test_what_has_no_digest_and_no_signature_is_refused(dist: Path) -> None:
    with pytest.raises(SigningError, match=r"SHA256SUMS\.sig is missing"):
        verify(dist, "ssh", identity="me")
    (dist / "c-1-py3-none-any.whl").touch()
    with pytest.raises(SigningError, match="has no digest"):
        check_digests(dist)
    (dist / DIGESTS).unlink()
    with pytest.raises(SigningError, match="make wheels"):
        check_digests(dist)


def test_names_that_leave_the_folder_are_refused(dist: Path) -> None:
    (dist.parent / "x").write_bytes(b"")
    (dist / DIGESTS).write_text(f"{hashlib.sha256(b'').hexdigest()}  ../x\n")
    with pytest.raises(SigningError, match="is not there"):
        check_digests(dist)


def test_a_tool_that_is_not_installed(dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SigningError, match="ssh-keygen is not installed"):
        sign(dist, "ssh", identity="none")


def test_the_command(dist: Path) -> None:
    script = Path(sys.modules["sign"].__file__ or "")
    command = [sys.executable, str(script), "verify", "--by", "ssh", "--folder", str(dist)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "SHA256SUMS.sig is missing" in done.stderr) == (1, True)


def test_a_release_has_the_date_of_its_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.7.0, 2030-01-02\n\n- x\n\n## 0.6.0, 2029-01-01\n")
    assert source_date(tmp_path) == 1893542400
    assert Asked(tmp_path, "me").issuer.startswith("https://")
