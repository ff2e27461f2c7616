"""A broker with listeners for TLS: SASL_SSL with SCRAM, SSL with client certificates, and one that is out of date."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST, find_port
from support.certificates import Authority

USER: Final = "job"
PASSWORD: Final = "scram-pa55 \"word',;%s{}"
KEY_PASSWORD: Final = "k3y-pa55word"
# The certificates are for this name: by its address, the broker is a host that they do not name.
NAME: Final = "localhost"
MECHANISMS: Final = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}


class SecureBroker:
    """Client properties for the listeners of a broker."""

    def __init__(self, stack: LocalStack, ports: Mapping[str, int], authority: Authority) -> None:
        self._stack, self._ports, self._authority = stack, ports, authority
        self._client = authority.issue("client", password=KEY_PASSWORD)

    @property
    def plain(self) -> dict[str, Any]:
        """Client properties of the listener without TLS, for what the tests prepare."""
        return dict(self._stack.kafka_properties)

    def scram(self, mechanism: str = "SCRAM-SHA-512", **changes: Any) -> dict[str, Any]:
        """Client properties of the listener that asks for a password."""
        properties = {
            "bootstrap.servers": f"{NAME}:{self._ports['SECURE']}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self._authority.certificate),
        }
        return properties | {name.replace("_", "."): value for name, value in changes.items()}

    @property
    def by_certificate(self) -> dict[str, Any]:
        """Client properties of the listener that asks for a certificate."""
        certificate, key = self._client
        return {
            "bootstrap.servers": f"{NAME}:{self._ports['MUTUAL']}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._authority.certificate),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "ssl.key.password": KEY_PASSWORD,
        }

    @property
    def expired(self) -> dict[str, Any]:
        """Client properties of the listener whose certificate has expired."""
        return {
            "bootstrap.servers": f"{NAME}:{self._ports['EXPIRED']}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._authority.certificate),
        }

    @property
    def log(self) -> Path:
        """The broker's log."""
        return self._stack.broker.log_file

    def by_address(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """The properties with the broker's address, which no certificate of it names."""
        return {**properties, "bootstrap.servers": properties["bootstrap.servers"].replace(NAME, HOST)}


@contextmanager
def secure_broker(home: Path, name: str, authority: Authority) -> Iterator[SecureBroker]:
    """Run a separate broker with these listeners, and with a password of USER for each mechanism."""
    stack = LocalStack(home, name=name)
    try:
        stack.broker.configure({}, None, anywhere=True)
        ports: dict[str, int] = {}
        for listener in ("SECURE", "MUTUAL", "EXPIRED"):
            ports[listener] = find_port(None, frozenset({*stack.broker.ports.values(), *ports.values()}))
        stack.broker.configure({}, _listeners(stack.broker.ports, ports, authority))
        stack.broker.start()
        credentials = [
            UserScramCredentialUpsertion(USER, ScramCredentialInfo(each, 4096), PASSWORD.encode())
            for each in MECHANISMS.values()
        ]
        admin = AdminClient(dict(stack.kafka_properties))
        for each in credentials:
            for done in admin.alter_user_scram_credentials([each]).values():
                done.result(30)
        yield SecureBroker(stack, ports, authority)
    finally:
        stack.down(delete=True)


def _listeners(plain: Mapping[str, int], secure: Mapping[str, int], authority: Authority) -> dict[str, str]:
    keystore = _keystore(*authority.issue("broker", [NAME]))
    expired = _keystore(*authority.issue("expired", [NAME], age=timedelta(days=2)))
    open_to = {"CLIENT": f"CLIENT://{HOST}:{plain['client']}"}
    open_to |= {each: f"{each}://{HOST}:{port}" for each, port in secure.items()}
    told = {each: address.replace(HOST, NAME) for each, address in open_to.items()}
    return {
        "listeners": ",".join([*open_to.values(), f"CONTROLLER://{HOST}:{plain['controller']}"]),
        "advertised.listeners": ",".join(told.values()),
        "listener.security.protocol.map": (
            "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL,EXPIRED:SSL"
        ),
        "listener.name.secure.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.expired.ssl.keystore.location": str(expired),
        **{
            f"listener.name.secure.{each.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            )
            for each in MECHANISMS
        },
    }


def _keystore(certificate: Path, key: Path) -> Path:
    keystore = key.with_suffix(".keystore.pem")
    keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
    return keystore
