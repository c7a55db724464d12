"""Checks before a start: addresses, keys, files, and rules that join several settings."""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from aviso_server.config.settings import (
    Application,
    Archive,
    Auth,
    Backend,
    Ecpds,
    Limits,
    Metrics,
    Otlp,
    Settings,
    Subscriptions,
    Tls,
)
from aviso_server.config.sources import Findings, Node
from aviso_server.errors import Problem
from aviso_server.model.fields import SpatialField

__all__ = [
    "DEFAULT_ALGORITHMS",
    "PublicKey",
    "algorithms_of",
    "check_auth",
    "check_ecpds",
    "check_names",
    "check_sections",
    "log_level",
    "mask_credentials",
    "read_public_keys",
]


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)
_HOSTED = frozenset({"http", "https", "ws", "wss", "ftp"})
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def _base_url(text: str) -> None:
    """Check the start of an event's `source` and `dataschema`."""
    parts = _parsed(text)
    if not _SCHEME.match(text):
        raise ValueError("has no scheme")
    if parts.scheme in _HOSTED and not parts.hostname:
        raise ValueError("has no host")


def _web_url(text: str) -> None:
    """Check an absolute http(s) address without credentials."""
    parts = _parsed(text)
    if parts.scheme not in ("http", "https"):
        raise ValueError("is not an absolute http or https URL")
    if not parts.hostname:
        raise ValueError("has no host")
    if "@" in parts.netloc:
        raise ValueError("must not carry credentials")


def _key_url(text: str) -> None:
    """Check an address that keys are fetched from."""
    _web_url(text)
    _private(_parsed(text))


def _server_url(text: str) -> None:
    """Check the address of a server that is given a password."""
    parts = _parsed(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not an absolute URL with a host")
    if "?" in text or "#" in text:
        raise ValueError("must have neither query nor fragment")
    _private(parts)


def _private(parts: SplitResult) -> None:
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise ValueError("must use https unless it is on this machine")


def _parsed(text: str) -> SplitResult:
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("contains blanks or control characters")
    try:
        parts = urlsplit(text)
        _ = parts.port  # reading the port checks it
    except ValueError:
        raise ValueError("is not a valid URL") from None
    return parts


def _check(rule: Callable[[str], object], text: str, key: str, accepted: str, findings: Findings) -> None:
    """Refuse the key if the rule raises ValueError."""
    try:
        rule(text)
    except ValueError as error:
        findings.refuse(key, str(error), accepted)


def _filled(text: str | None, key: str, absent: str, accepted: str, findings: Findings) -> bool:
    """Refuse a text that is absent or blank, or that has blanks around it; return whether it can be used."""
    if text is None or not text.strip():
        findings.refuse(key, absent, accepted)
        return False
    if text != text.strip():
        findings.refuse(key, "must not begin or end with blanks", _UNPADDED)
    return text == text.strip()


def mask_credentials(text: str) -> str:
    """Hide user and password in the addresses of a text."""
    return re.sub(r"(?<=://)[^/?#\s]*@", "[REDACTED]@", text)


PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_EDWARDS = "EdDSA"
_SMALLEST_RSA = 2048  # bits
_MARK = "-----BEGIN "

ALGORITHMS = (*_RSA, *_CURVES.values(), _EDWARDS)
"""The public-key signatures that `auth.algorithms` may name."""

DEFAULT_ALGORITHMS = ("RS256", "ES256", _EDWARDS)


def algorithms_of(key: object) -> tuple[str, ...]:
    """Return the algorithms a key can be used with; none if it is too weak or of another kind."""
    if isinstance(key, rsa.RSAPublicKey):
        return _RSA if key.key_size >= _SMALLEST_RSA else ()
    if isinstance(key, ec.EllipticCurvePublicKey):
        algorithm = _CURVES.get(key.curve.name)
        return () if algorithm is None else (algorithm,)
    return (_EDWARDS,) if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey) else ()


def read_public_keys(path: Path) -> list[PublicKey]:
    """Read the keys of a PEM file; raises ValueError if it holds anything but public keys and certificates."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError("the file is not PEM text") from None
    keys = [_read(block.partition("-----")[0], (_MARK + block).encode()) for block in text.split(_MARK)[1:]]
    if not keys:
        raise ValueError("the file holds no PEM block")
    return keys


def _read(label: str, pem: bytes) -> PublicKey:
    if "PRIVATE" in label:
        raise ValueError("the file holds a private key, which this server must not have")
    try:
        key = x509.load_pem_x509_certificate(pem).public_key() if "CERTIFICATE" in label else load_pem_public_key(pem)
    except Exception:  # the library has many words for a block that is not a key
        raise ValueError(f"the block '{label}' is not a public key or a certificate") from None
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < _SMALLEST_RSA:
        raise ValueError(f"an RSA key of {key.key_size} bits is too weak; {_SMALLEST_RSA} or more are needed")
    if not isinstance(key, PublicKey) or not algorithms_of(key):
        raise ValueError("the key is of a kind that no accepted algorithm uses")
    return key


_VARIABLES = ("RUST_LOG", "AVISOSERVER_LOG")  # the first of them that is not blank counts
_LEVELS = ("trace", "debug", "info", "warn", "error")
_DIRECTIVE = re.compile(r"(?:(?P<target>[A-Za-z0-9_:.-]+)=)?(?P<level>[A-Za-z]+)", re.ASCII)


def log_level(environ: Mapping[str, str], configured: str) -> tuple[str, Mapping[str, str], Problem | None]:
    """Return the level, those of modules that differ, by dotted name, and a warning if the variable cannot be read."""
    fallback = configured.lower() if configured.lower() in _LEVELS else "info"
    variable = next((name for name in _VARIABLES if environ.get(name, "").strip()), None)
    if variable is None:
        return fallback, {}, None
    wanted = environ[variable].strip()
    found: dict[str, str] = {}
    for directive in wanted.split(","):
        match = _DIRECTIVE.fullmatch(directive.strip())
        if match is None or match["level"].lower() not in (*_LEVELS, "off"):
            known = ", ".join((*_LEVELS, "off"))
            return fallback, {}, Problem(variable, f"cannot read '{directive.strip()}', using {fallback}", known)
        found[(match["target"] or "").replace("::", ".")] = match["level"].lower()
    modules = {name: level for name, level in found.items() if name}
    return found.get("aviso_server", found.get("", fallback)), modules, None


_SECTION = "notification_backend.jetstream"
_PLAIN, _WEB = ("nats", "tls"), ("ws", "wss")
_ADDRESSES = "nats://host:port, several separated by commas; also tls://, ws:// and wss://"
_CERTIFICATE = re.compile(rb"-----BEGIN (TRUSTED |X509 )?CERTIFICATE-----")
_PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z]+ )*PRIVATE KEY-----")
_SEED = re.compile(rb"BEGIN USER NKEY SEED[^\n]*\n([^\n]+)\n")


def _broker(backend: Backend, findings: Findings) -> None:
    """Check what the broker is reached with, as far as that is possible without asking it."""
    jetstream = backend.jetstream
    if jetstream.tls.key_file is not None and jetstream.tls.cert_file is None:
        findings.refuse(f"{_SECTION}.tls.cert_file", "must be set when key_file is", "the certificate of that key")
    if backend.kind != "jetstream":
        return
    if not findings.broken(f"{_SECTION}.nats_url"):
        _addresses([each.strip() for each in jetstream.nats_url.split(",")], findings)
    _authorities(jetstream.tls.ca_file, findings)
    _own_certificate(jetstream.tls, findings)
    _credentials(jetstream.credentials_file, findings)


def _addresses(addresses: list[str], findings: Findings) -> None:
    # messages count the addresses instead of repeating them: there may be a password inside
    for number, address in enumerate(addresses, 1):
        reason = _address_problem(address)
        if reason is not None:
            which = f"address {number} of {len(addresses)} " if len(addresses) > 1 else ""
            findings.refuse(f"{_SECTION}.nats_url", which + reason, _ADDRESSES)
    if not findings.broken(f"{_SECTION}.nats_url") and len({_scheme(each) in _WEB for each in addresses}) > 1:
        findings.refuse(f"{_SECTION}.nats_url", "mixes ws:// or wss:// with other addresses", "all of them, or none")


def _address_problem(address: str) -> str | None:
    if not address:
        return "is empty"
    if any(character.isspace() or not character.isprintable() for character in address):
        return "contains blanks or control characters"
    scheme = _scheme(address)
    if scheme not in (*_PLAIN, *_WEB):
        return f"has the scheme '{scheme}://'"
    if scheme in _WEB and importlib.util.find_spec("aiohttp") is None:
        return f"needs the package 'aiohttp' for {scheme}://, and it is not installed"
    try:
        parts = urlsplit(address if "://" in address else f"nats://{address}")
        port = parts.port
    except ValueError:
        return "has a port that is not a number from 1 to 65535, or brackets that do not match"
    if port == 0:
        return "has the port 0"
    return None if parts.hostname else "has no host"


def _scheme(address: str) -> str:
    scheme, separator, _ = address.partition("://")
    return scheme if separator else "nats"


def _authorities(file: Path | None, findings: Findings) -> None:
    key = f"{_SECTION}.tls.ca_file"
    if file is None or _content(file, key, "a PEM file with certificates", findings) is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=str(file))
    except ssl.SSLError:
        findings.refuse(key, "the file holds no certificate that can be read", "a PEM file with certificates")


def _own_certificate(tls: Tls, findings: Findings) -> None:
    cert_key, key_key = f"{_SECTION}.tls.cert_file", f"{_SECTION}.tls.key_file"
    cert_accepted, key_accepted = "a PEM file with a certificate", "a PEM file with the private key, not encrypted"
    cert = None if tls.cert_file is None else _content(tls.cert_file, cert_key, cert_accepted, findings)
    key = cert if tls.key_file is None else _content(tls.key_file, key_key, key_accepted, findings)
    if cert is not None and not _CERTIFICATE.search(cert):
        findings.refuse(cert_key, "the file holds no certificate in PEM form", cert_accepted)
    if key is not None and not _PRIVATE_KEY.search(key):
        beside = "must be set: cert_file holds no private key"
        message = beside if tls.key_file is None else "the file holds no private key in PEM form"
        findings.refuse(key_key, message, key_accepted)
    if tls.cert_file is None or None in (cert, key) or findings.broken(cert_key) or findings.broken(key_key):
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        message = "is not the key of the certificate" if mismatch else f"cannot be used: {error.reason or error}"
        findings.refuse(key_key if mismatch else cert_key, message, key_accepted if mismatch else cert_accepted)
    except ValueError as error:
        findings.refuse(key_key, str(error), key_accepted)


def _no_password() -> NoReturn:
    # without this OpenSSL asks on the terminal, where nobody sits
    raise ValueError("the private key is encrypted")


def _credentials(file: Path | None, findings: Findings) -> None:
    key, accepted = f"{_SECTION}.credentials_file", "a NATS credentials file with a user JWT and a seed"
    content = None if file is None else _content(file, key, accepted, findings)
    if content is None:
        return
    seed = _SEED.search(content)
    if b"BEGIN NATS USER JWT" not in content or seed is None:
        findings.refuse(key, "the file holds no user JWT with its seed", accepted)
        return
    import nkeys  # most servers do without it

    try:
        nkeys.from_seed(bytearray(seed[1].strip()))
    except Exception:  # the library has many words for a seed that is none
        findings.refuse(key, "the seed in the file is not valid", accepted)


def _content(file: Path, key: str, accepted: str, findings: Findings) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError as error:
        findings.refuse(key, f"the file '{file}' cannot be read: {error.strerror or error}", accepted)
        return None


_LONGEST_HOST = 253
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|[0-9A-Fa-f:.]+", re.ASCII)
_SPARK = re.compile(r"local(\[([1-9][0-9]*|\*)\])?|yarn|k8s://\S+|(spark|sc)://[^\s/]+(/\S*)?", re.ASCII)
_STORES = ("", "file", "s3", "s3a")


def check_sections(settings: Settings, findings: Findings) -> None:
    """Check rules that join several keys, except those of event types, `auth` and `ecpds`."""
    _application(settings.application, findings)
    _otlp(settings.logging.otlp, findings)
    _metrics(settings.metrics, settings.application, findings)
    _archive(settings.archive, settings.notification_backend.kind, findings)
    _limits(settings.limits, findings)
    _subscriptions(settings.subscriptions, findings)
    _broker(settings.notification_backend, findings)


def check_names(roles: Mapping[str, tuple[str, ...]], key: str, findings: Findings) -> None:
    """Check that there are realms and roles, none of them blank or padded."""
    if not roles and not _below(key, findings):
        findings.refuse(key, "names no realm", "at least one realm with at least one role")
    for realm, names in roles.items():
        if not realm.strip() or realm != realm.strip():
            findings.refuse(f"{key}.{realm}", "the realm is blank or has blanks around it", "a clean realm name")
        if not names and not _below(f"{key}.{realm}", findings):
            findings.refuse(f"{key}.{realm}", "names no role", "at least one role")
        for place, name in enumerate(names):
            if not name.strip() or name != name.strip():
                findings.refuse(f"{key}.{realm}[{place}]", "the role is blank or has blanks around it", "a clean name")


def _below(key: str, findings: Findings) -> bool:
    return any(problem.key.startswith(key) for problem in findings.problems)


def _application(application: Application, findings: Findings) -> None:
    accepted = "an absolute URL such as https://aviso.example.org"
    _check(_base_url, application.base_url, "application.base_url", accepted, findings)
    for place, host in enumerate(application.allowed_hosts):
        if len(host) > _LONGEST_HOST or not _HOST.fullmatch(host):
            accepted = "a name such as aviso.example.org, without scheme and port"
            findings.refuse(f"application.allowed_hosts[{place}]", f"'{host}' is not a host name", accepted)
    for name, url in msgspec.structs.asdict(application.homepage).items():
        accepted = "an absolute http or https URL with a host and without credentials"
        _check(_web_url, url, f"application.homepage.{name}", accepted, findings)


def _otlp(otlp: Otlp, findings: Findings) -> None:
    key, accepted = "logging.otlp.endpoint", "host:port or an http(s) URL"
    if otlp.endpoint is not None and otlp.endpoint.strip():
        url = otlp.endpoint if "://" in otlp.endpoint else f"http://{otlp.endpoint}"
        _check(_web_url, url, key, accepted, findings)
    elif (otlp.enabled or otlp.traces) and not findings.broken(key):
        findings.refuse(key, "must be set when logging.otlp.enabled or logging.otlp.traces is true", accepted)


def _metrics(metrics: Metrics, application: Application, findings: Findings) -> None:
    key, accepted = "metrics.port", "1 to 65535, other than application.port"
    if not metrics.enabled or findings.broken(key):
        return
    if metrics.port is None:
        findings.refuse(key, "must be set when metrics.enabled is true", accepted)
    elif metrics.port == 0:
        findings.refuse(key, "0 is out of range", accepted)
    elif metrics.port == application.port and not findings.broken("application.port"):
        findings.refuse(key, f"{metrics.port} is application.port already", accepted)


def _limits(limits: Limits, findings: Findings) -> None:
    for place, network in enumerate(limits.trusted_proxies):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            accepted = "an IP address or a network such as 10.0.0.0/8"
            findings.refuse(f"limits.trusted_proxies[{place}]", f"'{network}' is not an address", accepted)
    if limits.request_burst is not None and limits.requests_per_second is None:
        findings.refuse("limits.request_burst", "needs limits.requests_per_second", "both, or neither")


_SINK = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")


def _subscriptions(subscriptions: Subscriptions, findings: Findings) -> None:
    for place, entry in enumerate(subscriptions.allow_sinks):
        try:
            ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            if _SINK.fullmatch(entry) is None:
                accepted = "a host name (*.example.org for all below), host:port, an IP address or a network"
                findings.refuse(f"subscriptions.allow_sinks[{place}]", f"'{entry}' is none of these", accepted)


def _archive(archive: Archive, backend: str, findings: Findings) -> None:
    if archive.enabled and backend == "in_memory" and not findings.broken("archive.enabled"):
        # sequences begin anew with every start: they would stand for other notifications than those archived
        accepted = "false, or notification_backend.kind sqlite or jetstream"
        findings.refuse("archive.enabled", "the archive needs a log that survives a restart", accepted)
    if not _SPARK.fullmatch(archive.spark):
        accepted = "local, local[N], local[*], yarn, spark://host:port, k8s://https://host:port or sc://host:port"
        findings.refuse("archive.spark", f"'{archive.spark}' is not a Spark master", accepted)
    if urlsplit(archive.path).scheme not in _STORES:
        accepted = "a folder, file://…, s3://… or s3a://…"
        findings.refuse("archive.path", f"'{archive.path}' is in no store that can be reached", accepted)
    if archive.url is not None:
        _check(_web_url, archive.url, "archive.url", _SERVICE, findings)


_UNPADDED = "text without blanks around it"
_SERVICE = "an absolute http or https URL without credentials, query or fragment"
_KEY_URL = "an https URL without credentials, or http:// to 127.0.0.1, [::1] or localhost"


def check_auth(auth: Auth, findings: Findings) -> None:
    """Check the keys that callers are recognised with."""
    if not auth.enabled:
        return
    _service(auth, findings)
    _keys(auth, findings)
    _algorithms(auth, findings)
    for name, text in (("audience", auth.audience), ("issuer", auth.issuer)):
        if text != text.strip():
            findings.refuse(f"auth.{name}", "must not begin or end with blanks", _UNPADDED)
    if not findings.broken("auth.admin_roles"):
        check_names(auth.admin_roles, "auth.admin_roles", findings)
    if auth.timeout_ms == 0:
        findings.refuse("auth.timeout_ms", "0 is out of range", "a whole number, 1 or more")


def _service(auth: Auth, findings: Findings) -> None:
    key, url = "auth.auth_o_tron_url", auth.auth_o_tron_url
    unneeded = auth.mode != "direct" or findings.broken("auth.mode")
    if findings.broken(key) or (unneeded and not url):
        return
    if not _filled(url, key, "must be set when auth is enabled in mode direct", _SERVICE, findings):
        return
    if "?" in url or "#" in url:
        findings.refuse(key, "must have neither query nor fragment", _SERVICE)
    else:
        _check(_web_url, url, key, _SERVICE, findings)


def _keys(auth: Auth, findings: Findings) -> None:
    """Check that there is one kind of key: a secret that signs must not be mixed with public keys."""
    public = [name for name in ("public_key_file", "jwks_url") if getattr(auth, name)]
    for name in public if auth.jwt_secret else public[1:]:
        other = "jwt_secret" if auth.jwt_secret else public[0]
        findings.refuse(f"auth.{name}", f"cannot be used together with auth.{other}", f"one of {', '.join(_SOURCES)}")
    if not public:
        _secret(auth, findings)
    if auth.public_key_file is not None:
        try:
            keys = read_public_keys(auth.public_key_file)
        except ValueError as error:
            findings.refuse("auth.public_key_file", str(error), "a PEM file with public keys or certificates")
            return
        pinned = set(auth.algorithms or DEFAULT_ALGORITHMS)
        if not any(pinned.intersection(algorithms_of(key)) for key in keys):
            usable = sorted({name for key in keys for name in algorithms_of(key)})
            findings.refuse("auth.algorithms", "none of them can be used with the key", ", ".join(usable))
    if auth.jwks_url:
        _check(_key_url, auth.jwks_url, "auth.jwks_url", _KEY_URL, findings)


_SOURCES = ("auth.jwt_secret", "auth.public_key_file", "auth.jwks_url")


def _secret(auth: Auth, findings: Findings) -> None:
    key, secret = "auth.jwt_secret", auth.jwt_secret
    if findings.broken(key) or any(findings.broken(name) for name in _SOURCES):
        return
    filled = _filled(secret, key, "must be set when auth is enabled", f"one of {', '.join(_SOURCES)}", findings)
    if filled and secret.startswith("-----BEGIN"):
        findings.refuse(key, "is a key in PEM form, not a secret", "a secret, or the file in auth.public_key_file")


def _algorithms(auth: Auth, findings: Findings) -> None:
    key = "auth.algorithms"
    if auth.algorithms and not auth.public_key_file and not auth.jwks_url:
        findings.refuse(key, "is for public keys; with auth.jwt_secret it is HS256 always", "leave it out")
        return
    for place, name in enumerate(auth.algorithms):
        if name not in ALGORITHMS:
            findings.refuse(f"{key}[{place}]", f"'{name}' is not accepted", ", ".join(ALGORITHMS))


_COUNTS = ("cache_ttl_seconds", "max_entries", "request_timeout_seconds", "connect_timeout_seconds")


def check_ecpds(root: Node, settings: Settings, findings: Findings) -> None:
    """Check the plugin's section, if an event type uses the plugin."""
    users = [name for name, auth in settings.stream_auth.items() if "ecpds" in auth.plugins]
    if not users:
        return
    if root.find("ecpds") is None:
        findings.refuse("ecpds", f"must be configured: event type '{users[0]}' uses the plugin", "an ecpds section")
        return
    _values(settings.ecpds, findings)
    match_key = settings.ecpds.match_key
    for event_type in settings.event_types:
        if event_type.name not in users or not match_key:
            continue
        key, field = f"notification_schema.{event_type.name}", event_type.fields.get(match_key)
        if field is None or not field.required:
            message = f"ecpds.match_key '{match_key}' must be a field with required: true"
            findings.refuse(f"{key}.identifier", message, "that field")
        # every check needs the one exact value, which the topic has
        if isinstance(field, SpatialField):
            message = f"'{match_key}' is a spatial field of event type '{event_type.name}'"
            findings.refuse("ecpds.match_key", message, "another field")
        elif field is not None and match_key not in event_type.key_order:
            message = f"must list ecpds.match_key '{match_key}'"
            findings.refuse(f"{key}.topic.key_order", message, "the match key among the other fields")


def _values(ecpds: Ecpds, findings: Findings) -> None:
    for name in ("username", "password", "match_key"):
        key, text = f"ecpds.{name}", getattr(ecpds, name)
        if findings.broken(key) or not _filled(text, key, "must be set", "text that is not blank", findings):
            continue
        if name == "match_key" and any(letter.isspace() or letter in "/\0" for letter in text):
            findings.refuse(key, "contains a blank, a slash or NUL", "the name of an identifier field")
    if not ecpds.target_field.strip():
        findings.refuse("ecpds.target_field", "must not be blank", "the name of a member")
    if not ecpds.servers and not findings.broken("ecpds.servers"):
        findings.refuse("ecpds.servers", "names no server", "at least one https URL")
    for place, server in enumerate(ecpds.servers):
        accepted = "https://host, or http:// to 127.0.0.1, [::1] or localhost"
        _check(_server_url, server, f"ecpds.servers[{place}]", accepted, findings)
    for name in _COUNTS:
        if getattr(ecpds, name) == 0:
            findings.refuse(f"ecpds.{name}", "0 is out of range", "a whole number, 1 or more")
