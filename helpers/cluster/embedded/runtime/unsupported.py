"""What a Pod may ask for and the process runtime cannot give: it is refused with its name, never ignored in silence.

The whole list, with what is accepted and has no effect, is in README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

from google.protobuf.message import Message

from helpers.cluster.embedded.runtime.capabilities import unknown
from helpers.cluster.embedded.runtime.cri import Messages, Refused

# the sysctls that belong to a namespace of the Pod; any other would change the host. As runc has it
# (libcontainer/configs/validate/validator.go).
IPC_SYSCTL = re.compile(r"kernel\.(msgmax|msgmnb|msgmni|sem|shmall|shmmax|shmmni|shm_rmid_forced)|fs\.mqueue\..+")
NET_SYSCTL = re.compile(r"net\..+")
# what the kubelet gives a container with a real GPU. A GPU's own file has its number in its name
GPU_FILE = re.compile(r"/dev/nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)")


def refuse(field: str, instead: str) -> NoReturn:
    """Refuses a field.

    Args:
        field: as it is called in a Pod, with its value.
        instead: why, or what to do instead.
    """
    raise Refused("INVALID_ARGUMENT", f"the process runtime does not support {field}: {instead}")


def check_sandbox(pb: Messages, config: Message, handler: str) -> None:
    """Refuses what cannot be done for a whole Pod.

    Args:
        config: the PodSandboxConfig.
        handler: the runtime class's handler.

    Raises:
        Refused: with the name of the field.
    """
    security = config.linux.security_context
    namespaces = security.namespace_options
    if handler:
        refuse(f"runtimeClassName (handler {handler})", "every Pod here consists of ordinary processes")
    if config.HasField("windows"):
        refuse("Windows containers", "the machine runs Linux")
    if namespaces.network != pb.NODE:  # with hostNetwork every port is one of the host's anyway
        for port in config.port_mappings:
            if port.host_port:
                text = f"hostPort (container port {port.container_port} → host port {port.host_port})"
                refuse(text, "use a Service of type NodePort, or `kubectl port-forward`")
    _check_security(pb, security)
    for name in config.linux.sysctls:
        _check_sysctl(pb, name.replace("/", "."), namespaces)


def _check_sysctl(pb: Messages, name: str, namespaces: Message) -> None:
    if NET_SYSCTL.fullmatch(name):
        if namespaces.network == pb.NODE:
            refuse(f"the sysctl {name} with hostNetwork", "it would change the network of the whole cluster")
    elif IPC_SYSCTL.fullmatch(name):
        if namespaces.ipc == pb.NODE:
            refuse(f"the sysctl {name} with hostIPC", "it would change the host")
    else:
        refuse(f"the sysctl {name}", "it belongs to no namespace, so it would change the host")


def check_container(pb: Messages, config: Message) -> None:
    """Refuses what cannot be done for a container.

    Args:
        config: the ContainerConfig.

    Raises:
        Refused: with the name of the field.
    """
    security = config.linux.security_context
    if config.HasField("windows"):
        refuse("Windows containers", "the machine runs Linux")
    check_devices(config.devices)
    for device in config.CDI_devices:
        refuse(f"CDI devices ({device.name})", "GPUs are numbers here, or come by their device files")
    asked = security.capabilities
    if asked.add_ambient_capabilities:
        refuse(f"ambient capabilities ({', '.join(asked.add_ambient_capabilities)})", "use capabilities.add")
    if wrong := unknown([*asked.add_capabilities, *asked.drop_capabilities]):
        raise Refused("INVALID_ARGUMENT", f"there is no capability {', '.join(wrong)}")
    if security.HasField("run_as_group") and not (security.HasField("run_as_user") or security.run_as_username):
        raise Refused("INVALID_ARGUMENT", "runAsGroup is set without runAsUser")
    _check_security(pb, security)
    for mount in config.mounts:
        _check_mount(mount)
    check_resources(config.linux.resources)


def check_devices(devices: Iterable[Message]) -> None:
    """Refuses device files but those of GPUs, which the kubelet asks for on a machine that has real ones.

    Raises:
        Refused: with the file's name.
    """
    for device in devices:
        if not GPU_FILE.fullmatch(device.host_path) or device.container_path != device.host_path:
            refuse(f"devices ({device.host_path})", "containers have the usual ones of /dev, and those of their GPUs")
        if set(device.permissions) != {"r", "w"}:
            refuse(f"devices ({device.host_path}: {device.permissions})", "a GPU can be read and written, and not made")


def check_resources(resources: Message) -> None:
    """Refuses limits that cannot be held. Those of CPU are accepted and have no effect; README.md says so.

    Raises:
        Refused: with the name of the field.
    """
    if resources.cpuset_cpus or resources.cpuset_mems:
        refuse("CPU and memory pinning (cpuset)", "all containers share all CPUs")
    for huge in resources.hugepage_limits:
        if huge.limit:
            refuse(f"hugepages-{huge.page_size}", "the machine has none to give")
    if resources.unified:
        refuse(f"cgroup settings ({', '.join(sorted(resources.unified))})", "only the limit of memory is set")
    if resources.memory_swap_limit_in_bytes > resources.memory_limit_in_bytes:
        refuse("swap", "containers have memory only")


def _check_security(pb: Messages, security: Message) -> None:
    """What security contexts of Pods and of containers have in common."""
    selinux = security.selinux_options
    if selinux.user or selinux.role or selinux.type or selinux.level:
        refuse("seLinuxOptions", "processes keep the machine's own label")
    local = pb.SecurityProfile.Localhost
    path = security.seccomp_profile_path
    if security.seccomp.profile_type == local or path.startswith("localhost/"):
        refuse(f"seccompProfile ({security.seccomp.localhost_ref or path})", "no system call is filtered")
    path = getattr(security, "apparmor_profile", "")  # a container's only, and deprecated
    if security.apparmor.profile_type == local or path.startswith("localhost/"):
        refuse(f"appArmorProfile ({security.apparmor.localhost_ref or path})", "no profile is loaded")
    options = security.namespace_options
    if options.HasField("userns_options") and options.userns_options.mode == pb.POD:
        refuse("hostUsers: false", "Pods have no user namespace of their own")


def _check_mount(mount: Message) -> None:
    where = mount.container_path
    if mount.image.image:
        refuse(f"an image as a volume ({mount.image.image} at {where})", "images here have no contents of their own")
    if mount.uidMappings or mount.gidMappings:
        refuse(f"mounts with mapped ids ({where})", "Pods have no user namespace of their own")
    if mount.recursive_read_only:
        refuse(f"recursiveReadOnly ({where})", "only the mount itself can be read-only")
