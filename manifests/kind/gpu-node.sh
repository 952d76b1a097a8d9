#!/bin/bash
# Runs in the container of the Kubernetes node that has the GPUs, as root, once: containerd in there learns to hand them
# on to Pods. Not run by those who wrote it.
set -eu
# docker's runtime lays a directory of its own over what the driver shows; containers within this one need the driver's
umount -R /proc/driver/nvidia 2>/dev/null || true
packages=https://nvidia.github.io/libnvidia-container
key=/usr/share/keyrings/nvidia-container-toolkit.gpg
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq gpg curl
curl -fsSL "$packages/gpgkey" | gpg --dearmor --yes -o "$key"
echo "deb [signed-by=$key] $packages/stable/deb/$(dpkg --print-architecture) /" \
  >/etc/apt/sources.list.d/nvidia-container-toolkit.list
apt-get update -qq
apt-get install -y -qq nvidia-container-toolkit
# as the default runtime: Ray's Pods and the device plugin then need no RuntimeClass
nvidia-ctk runtime configure --runtime=containerd --set-as-default --config-source=command
systemctl restart containerd
