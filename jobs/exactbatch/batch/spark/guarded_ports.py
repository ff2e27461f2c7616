"""Who can reach the ports that a driver opens, and with which secret."""

import re
from collections.abc import Mapping
from typing import Final

_LOCAL: Final = re.compile(r"local(\[[^]]*\])?")
# Whoever reaches a driver's ports can send it Java objects, and end its stages on its pages.
_ALONE: Final = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
# Spark makes a secret for each application, and hands it to its executors, if it starts these itself.
_AUTHENTICATED: Final = {"spark.authenticate": "true"}
_SHUFFLE_SERVICE: Final = "spark.shuffle.service.enabled"  # which needs the setting, too


def is_local(settings: Mapping[str, str]) -> bool:
    """True if the master is a `local` one, so that all is in one process of the JVM."""
    return _LOCAL.fullmatch(settings.get("spark.master", "")) is not None


def guarded_ports(settings: Mapping[str, str]) -> dict[str, str]:
    """Return Spark properties that keep others from the driver's ports; `settings`, which are all those of the driver,
    take precedence.

    With a local master, only this machine reaches them, and there is no web UI. With it, YARN and Kubernetes, Spark
    takes messages only from what has this application's secret. The processes of a standalone cluster run before the
    driver, and must have been given a secret.
    """
    own = dict(_ALONE) if is_local(settings) else {}
    makes_secret = is_local(settings) or re.match(r"yarn$|k8s://", settings.get("spark.master", ""))
    if makes_secret and settings.get(_SHUFFLE_SERVICE) != "true":
        own |= _AUTHENTICATED
    return {name: value for name, value in own.items() if name not in settings}
