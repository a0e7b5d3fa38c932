"""This host: versions, limits, disk, and the interface that links would use."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import ipaddress
import os
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trainmover.bus.credentials import BusAddress
from trainmover.runtime.network import address_towards
from trainmover.security.secret import home
from trainmover_console.doctor.symptom import Symptom, good, problem, warning

__all__ = ["Host", "gather", "judge"]

_PYTHON: Final = (3, 11)
_FILES: Final = 4096
"""A rank keeps links to its neighbours of every group, twice while a move is prepared."""

_LEAST: Final[Mapping[str, tuple[int, int]]] = {"nats-py": (2, 16), "torch": (2, 6)}
_FREE_BYTES: Final = 2 * 1024**3
_PORTS: Final = 4096
_BRIDGES: Final = ("docker", "br-", "virbr", "veth", "cni", "podman", "tun", "wg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What is known of this host.

    Attributes:
        versions: Installed version by package; None where it is not installed.
        files: Soft and hard limit of open files.
        free_bytes: Free space by folder.
        ports: First and last of the ports that listeners get.
        address: The address that machines would announce, towards the bus.
        interface: The network interface that has it.
        mbit_s: That interface's speed; None where it does not say.
        server: Whether a ``nats-server`` program is at hand.
        bus_is_far: Whether the bus is on another host.
    """

    python: tuple[int, int]
    linux: bool
    versions: Mapping[str, str | None]
    files: tuple[int, int]
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    ports: tuple[int, int] = (32768, 60999)
    address: str = ""
    interface: str = ""
    mbit_s: int | None = None
    server: bool = True
    bus_is_far: bool = False


def gather(bus: BusAddress | None) -> Host:
    """Look at this host; ``bus`` is where links would lead to."""
    address = "" if bus is None else _address_towards(bus)
    interface = _interface_of(address)
    return Host(
        python=sys.version_info[:2],
        linux=sys.platform == "linux",
        versions={name: _version(name) for name in ("trainmover", "nats-py", "torch")},
        files=resource.getrlimit(resource.RLIMIT_NOFILE),
        free_bytes=dict(_free()),
        ports=_ports(),
        address=address,
        interface=interface,
        mbit_s=_speed(interface),
        server=_has_server(),
        bus_is_far=bool(address) and not _is_loopback(address),
    )


def judge(host: Host) -> Iterator[Symptom]:
    """What that means. Pure."""
    yield from _versions(host)
    yield _files(host)
    yield _listeners(host)
    yield from _disk(host)
    if host.address:
        yield _links(host)


def _versions(host: Host) -> Iterator[Symptom]:
    python = ".".join(map(str, host.python))
    if host.python < _PYTHON or not host.linux:
        need = ".".join(map(str, _PYTHON))
        yield problem(
            "python", f"Python {python} on {'Linux' if host.linux else 'another system'}",
            f"Use Linux and Python {need} or later.",
        )  # fmt: skip
    else:
        yield good("python", f"Python {python} on Linux")
    for name, least in _LEAST.items():
        found = host.versions.get(name)
        need = ".".join(map(str, least))
        if found is None:
            cure = "pip install 'trainmover[train]' on machines that train."
            yield warning("versions", f"{name} is not installed", cure)
        elif _numbers(found) < least:
            cure = f"pip install -U '{name}>={need}'"
            yield problem("versions", f"{name} {found} is older than {need}", cure)
        else:
            yield good("versions", f"{name} {found}")
    if not host.server:
        yield warning(
            "versions",
            "there is no nats-server program here",
            "pip install 'trainmover[server]' to start jobs here, or use a bus elsewhere: --nats.",
        )


def _files(host: Host) -> Symptom:
    soft, hard = host.files
    if 0 <= soft < _FILES:
        room = "" if hard < 0 or hard >= _FILES else " (as root: the hard limit is lower, too)"
        return problem(
            "open files",
            f"a process may open {soft} files; links need up to {_FILES}",
            f"ulimit -n {_FILES}{room}, or LimitNOFILE= in the systemd unit.",
        )
    return good("open files", f"a process may open {'any number of' if soft < 0 else soft} files")


def _listeners(host: Host) -> Symptom:
    first, last = host.ports
    if last - first < _PORTS:
        return warning(
            "ports",
            f"listeners get ports {first} to {last}: {last - first + 1} in all",
            'sysctl -w net.ipv4.ip_local_port_range="32768 60999", and let the firewall pass them.',
        )
    return good("ports", f"listeners get ports {first} to {last}; a firewall has to pass them")


def _disk(host: Host) -> Iterator[Symptom]:
    for folder, free in host.free_bytes.items():
        text = f"{free / 1024**3:.1f} GiB free in {folder}"
        if free < _FREE_BYTES:
            cure = f"Make room, or set TRAINMOVER_HOME: {_FREE_BYTES / 1024**3:g} GiB are little."
            yield problem("disk", text, cure)
        else:
            yield good("disk", text)


def _links(host: Host) -> Symptom:
    where = f"{host.address} ({host.interface or 'unknown interface'})"
    cure = "Pass --host ADDRESS to trainmover agent, one that the other machines reach."
    if host.interface.startswith(_BRIDGES):
        return warning("interface", f"links would use {where}, which looks like a bridge", cure)
    if host.bus_is_far and host.mbit_s is not None and 0 < host.mbit_s < 1000:
        return warning("interface", f"links would use {where} at {host.mbit_s} Mbit/s", cure)
    if _is_loopback(host.address):
        return good("interface", f"links would stay on this host, as the bus does: {where}")
    return good("interface", f"links would use {where}")


def _is_loopback(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def _numbers(version: str) -> tuple[int, ...]:
    digits = version.split("+", maxsplit=1)[0].split(".")[:2]
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in digits)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_server() -> bool:
    beside = Path(sys.executable).parent / "nats-server"
    return os.access(beside, os.X_OK) or shutil.which("nats-server") is not None


def _free() -> Iterator[tuple[str, int]]:
    for folder in (home(), Path(tempfile.gettempdir())):
        there = next((each for each in (folder, *folder.parents) if each.exists()), None)
        if there is not None:
            yield str(folder), shutil.disk_usage(there).free


def _ports() -> tuple[int, int]:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        first, last = map(int, text.split())
    except (OSError, ValueError):
        return 32768, 60999
    return first, last


def _address_towards(bus: BusAddress) -> str:
    with contextlib.suppress(OSError, ValueError):
        return address_towards(*bus.host_and_port)
    return ""


def _interface_of(address: str) -> str:
    """The interface that has the address, as the kernel knows it."""
    if not address:
        return ""
    if ":" in address:
        return _interface_of_ipv6(address)
    import fcntl  # noqa: PLC0415 - Linux alone has it
    import struct  # noqa: PLC0415

    request = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                found = fcntl.ioctl(probe, request, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    wanted = ipaddress.IPv6Address(address.partition("%")[0]).packed.hex()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found, *_, name = line.split()
            if found == wanted:
                return name
    return ""


def _speed(interface: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        found = int(Path(f"/sys/class/net/{interface}/speed").read_text())
        return found if found > 0 else None
    return None
