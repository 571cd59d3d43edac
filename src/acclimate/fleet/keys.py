"""Certificates and keys of a fleet: an own certificate authority, TLS certificates, and the keys that nodes prove.

All are elliptic-curve keys (P-384), the kind that Flower's node authentication takes. Private keys are readable by
their owner alone.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

YEARS_CA, YEARS_CERTIFICATE = 10, 2
LOCAL = ("localhost", "127.0.0.1")


class Pair(NamedTuple):
    """A certificate (or a public key) and its private key, as files."""

    public: Path
    private: Path


def make_ca(folder: Path, name: str = "acclimate fleet") -> Pair:
    """A new certificate authority: `ca.crt` goes to every site, `ca.key` stays where certificates are signed."""
    key = ec.generate_private_key(ec.SECP384R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = _builder(who, who, key.public_key(), YEARS_CA)
    certificate = certificate.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = certificate.add_extension(_usage(signs_certificates=True), critical=True)
    certificate = certificate.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _save(folder, "ca", certificate.sign(key, hashes.SHA384()).public_bytes(Encoding.PEM), key)


def make_certificate(folder: Path, name: str, ca: Pair, hosts: Sequence[str] = LOCAL) -> Pair:
    """A TLS server certificate for these host names and addresses, signed by the authority."""
    if not hosts:
        raise ValueError("hosts=() must name at least one host or address that the certificate is for")
    issuer = x509.load_pem_x509_certificate(ca.public.read_bytes())
    signer = _load_private(ca.private)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    certificate = _builder(subject, issuer.subject, key.public_key(), YEARS_CERTIFICATE)
    certificate = certificate.add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
    certificate = certificate.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    certificate = certificate.add_extension(_usage(signs_certificates=False), critical=True)
    certificate = certificate.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    certificate = certificate.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
        critical=False,
    )
    return _save(folder, name, certificate.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM), key)


def make_node_key(folder: Path, name: str) -> Pair:
    """The key with which a node proves who it is: `NAME.pub` is registered at the server, `NAME.key` stays."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    pair = Pair(folder / f"{name}.pub", folder / f"{name}.key")
    write_private(pair.private, private)
    pair.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return pair


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
        f.write(content)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, years: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of sites differ a little
        .not_valid_after(now + datetime.timedelta(days=365 * years))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} holds a {type(key).__name__}; it must be an elliptic-curve key")
    return key


def _save(folder: Path, name: str, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> Pair:
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    write_private(pair.private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    pair.public.write_bytes(certificate)
    return pair
