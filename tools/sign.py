"""Sign a release, and check its signatures: one signature, over the digests of all files.

`python tools/sign.py sign|verify --by sigstore|gpg|ssh --identity WHO`, after `tools/wheels.py`. The files are
compared with SHA256SUMS before it is signed, and before a signature of it counts: who has signed the digests has
signed the files. Each tool asks for its own secrets; none is kept or read here.

- sigstore: `SHA256SUMS.sigstore.json`. To sign, the tool opens a browser, or takes the CI's token; to verify, the
  identity is the address that `--issuer` has vouched for.
- gpg: `SHA256SUMS.asc`. The identity is the fingerprint of the key.
- ssh: `SHA256SUMS.sig`. The identity is the file of the private key, and to verify a name in the file of `--signers`.

Source: the manuals of sigstore-python, gpg(1) and ssh-keygen(1).
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from distributions import ROOT
from wheels import DIGESTS

NAMESPACE = "kernelyard-release"  # of ssh's signatures: one for something else is none for a release
GITHUB = "https://github.com/login/oauth"


class SigningError(Exception):
    """A release that cannot be signed, or whose signature does not count, in words for a person."""


class Asked(NamedTuple):
    """Name what is signed, and by whom; issuer and signers: see the module."""

    digests: Path
    identity: str
    issuer: str = GITHUB
    signers: str = ""


class Signer(NamedTuple):
    """A tool: how its signature's name ends, and its commands.

    reads: the digests are its standard input. proof: what it says of a signature of the identity, beside its status.
    """

    suffix: str
    sign: Callable[[Asked, Path], list[str]]
    verify: Callable[[Asked, Path], list[str]]
    reads: bool = False
    proof: Callable[[Asked], str] = lambda asked: ""


def _sigstore(verb: str, *options: str) -> Callable[[Asked, Path], list[str]]:
    def command(asked: Asked, signature: Path) -> list[str]:
        who = ["--cert-identity", asked.identity, "--cert-oidc-issuer", asked.issuer] if verb == "verify" else []
        words = [verb, *(["identity"] if verb == "verify" else []), *options]
        return [sys.executable, "-m", "sigstore", *words, *who, "--bundle", str(signature), str(asked.digests)]

    return command


SIGNERS: Mapping[str, Signer] = {
    "sigstore": Signer(".sigstore.json", _sigstore("sign", "--overwrite"), _sigstore("verify")),
    "gpg": Signer(
        ".asc",
        lambda asked, signature: [
            *("gpg", "--batch", "--yes", "--local-user", asked.identity, "--armor"),
            *("--output", str(signature), "--detach-sign", str(asked.digests)),
        ],
        lambda asked, signature: [
            *("gpg", "--batch", "--status-fd", "1", "--verify", str(signature), str(asked.digests)),
        ],
        proof=lambda asked: f"VALIDSIG {asked.identity}",
    ),
    "ssh": Signer(
        ".sig",
        lambda asked, _: ["ssh-keygen", "-Y", "sign", "-f", asked.identity, "-n", NAMESPACE, str(asked.digests)],
        lambda asked, signature: [
            *("ssh-keygen", "-Y", "verify", "-f", asked.signers, "-I", asked.identity),
            *("-n", NAMESPACE, "-s", str(signature)),
        ],
        reads=True,
    ),
}


def check_digests(folder: Path) -> Path:
    """Return the file of digests of a folder, all of whose files are as it says. Raises: SigningError."""
    digests = folder / DIGESTS
    if not digests.is_file():
        raise SigningError(f"{digests} is missing: make wheels")
    named: set[str] = set()
    for line in digests.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        path = folder / name
        if path.parent != folder or not path.is_file():
            raise SigningError(f"{name} is named in {DIGESTS}, and is not there")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise SigningError(f"{name} is not the file whose digest {DIGESTS} has")
        named.add(name)
    unnamed = sorted(path.name for path in folder.glob("*.whl") if path.name not in named)
    if unnamed:
        raise SigningError(f"{unnamed[0]} has no digest in {DIGESTS}")
    return digests


def sign(folder: Path, by: str, **who: str) -> Path:
    """Sign the digests of a folder, and return the signature. who: as in `Asked`. Raises: SigningError."""
    asked, signer = Asked(check_digests(folder), **who), SIGNERS[by]
    signature = _signature_of(asked, signer)
    signature.unlink(missing_ok=True)
    _run(signer.sign(asked, signature), None)
    if not signature.is_file():
        raise SigningError(f"{by} made no signature")
    return signature


def _signature_of(asked: Asked, signer: Signer) -> Path:
    return asked.digests.with_name(asked.digests.name + signer.suffix)


def verify(folder: Path, by: str, **who: str) -> Path:
    """Check the files of a folder, and the signature of their digests; return it. Raises: SigningError."""
    asked, signer = Asked(check_digests(folder), **who), SIGNERS[by]
    signature = _signature_of(asked, signer)
    if not signature.is_file():
        raise SigningError(f"{signature} is missing")
    said = _run(signer.verify(asked, signature), asked.digests if signer.reads else None, is_read=True)
    if signer.proof(asked) not in said:
        raise SigningError(f"{signature.name} is not by {asked.identity}")
    return signature


def _run(command: list[str], given: Path | None, *, is_read: bool = False) -> str:
    """Return what a command says, where it is read; else it speaks to the person. Raises: SigningError."""
    try:
        data = None if given is None else given.read_bytes()
        done = subprocess.run(command, input=data, capture_output=is_read, check=False)
    except FileNotFoundError as error:
        raise SigningError(f"{command[0]} is not installed") from error
    if done.returncode:
        words = (done.stderr or b"").decode(errors="replace")
        raise SigningError(f"{command[0]} ended with {done.returncode} {words}".strip())
    return (done.stdout or b"").decode(errors="replace")


def main() -> int:
    """Sign or verify."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sign", "verify"))
    parser.add_argument("--by", choices=tuple(SIGNERS), default="sigstore")
    parser.add_argument("--identity", default="", help="who signs, see above")
    parser.add_argument("--issuer", default=GITHUB, help="sigstore: who vouches for the identity")
    parser.add_argument("--signers", default="", help="ssh: the file of allowed signers")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    who = {"identity": options.identity, "issuer": options.issuer, "signers": options.signers}
    try:
        done = {"sign": sign, "verify": verify}[options.what](options.folder, options.by, **who)
    except SigningError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{'signed' if options.what == 'sign' else 'right'}: {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
