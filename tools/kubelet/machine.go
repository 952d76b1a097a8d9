package main

import (
	"context"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	cadvisorapiv2 "github.com/google/cadvisor/info/v2"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
)

const osImage = "Course machine (processes, no container images)" // column OS-IMAGE of `kubectl get nodes -o wide`

// machine is what the kubelet believes to run on: the declared size, and the usage that was really measured.
type machine struct {
	spec   *Spec
	bootID string
	booted time.Time
	usage  *usageMeter
	disk   *diskMeter
}

var _ cadvisor.Interface = &machine{}

func newMachine(spec *Spec) (*machine, error) {
	bootID, booted, err := bootOf("/proc")
	if err != nil {
		return nil, err
	}
	return &machine{spec, bootID, booted, newUsageMeter(spec.Cgroup), &diskMeter{directory: spec.Disk}}, nil
}

func (m *machine) Start() error { return nil }

func (m *machine) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	id := "course-" + m.spec.Name
	return &cadvisorapi.MachineInfo{
		Timestamp:        m.booted,
		NumCores:         int(m.spec.CPU),
		NumPhysicalCores: int(m.spec.CPU),
		NumSockets:       1,
		MemoryCapacity:   uint64(m.spec.MemoryBytes),
		MachineID:        id,
		SystemUUID:       id,
		BootID:           m.bootID,
		InstanceID:       cadvisorapi.InstanceID(m.spec.Name),
	}, nil
}

func (m *machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	var names unix.Utsname
	if err := unix.Uname(&names); err != nil {
		return nil, err
	}
	kernel := unix.ByteSliceToString(names.Release[:])
	return &cadvisorapi.VersionInfo{KernelVersion: kernel, ContainerOsVersion: osImage}, nil
}

// ContainerInfoV2 is asked for the machine ("/") and for all Pods together (podsCgroup). A machine runs little but
// Pods, so both get the machine's usage. The answer must have exactly one entry, under the name that was asked for.
func (m *machine) ContainerInfoV2(name string, _ cadvisorapiv2.RequestOptions) (map[string]cadvisorapiv2.ContainerInfo, error) {
	used, err := m.usage.read(time.Now())
	if err != nil {
		return nil, err
	}
	return map[string]cadvisorapiv2.ContainerInfo{name: {
		Spec: cadvisorapiv2.ContainerSpec{
			CreationTime: m.booted,
			HasCpu:       true,
			HasMemory:    true,
			Memory:       cadvisorapiv2.MemorySpec{Limit: uint64(m.spec.MemoryBytes)},
		},
		Stats: []*cadvisorapiv2.ContainerStats{{
			Timestamp: used.at,
			Cpu:       &cadvisorapi.CpuStats{Usage: cadvisorapi.CpuUsage{Total: used.cpuNanoseconds}},
			CpuInst:   &cadvisorapiv2.CpuInstStats{Usage: cadvisorapiv2.CpuInstUsage{Total: used.cpuNanocores}},
			Memory:    &cadvisorapi.MemoryStats{Usage: used.memory, WorkingSet: used.workingSet, RSS: used.rss},
		}},
	}}, nil
}

// GetRequestedContainersInfo feeds /metrics/cadvisor, which is empty here: /metrics/resource has the figures of
// Pods and containers, from the runtime.
func (m *machine) GetRequestedContainersInfo(string, cadvisorapiv2.RequestOptions) (map[string]*cadvisorapi.ContainerInfo, error) {
	return map[string]*cadvisorapi.ContainerInfo{}, nil
}

func (m *machine) ImagesFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) { return m.fileSystem() }
func (m *machine) RootFsInfo() (cadvisorapiv2.FsInfo, error)                  { return m.fileSystem() }
func (m *machine) ContainerFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) {
	return m.fileSystem()
}
func (m *machine) GetDirFsInfo(string) (cadvisorapiv2.FsInfo, error) { return m.fileSystem() }

// fileSystem is the machine's one disk: the declared size, of which at most what the host has left is available.
func (m *machine) fileSystem() (cadvisorapiv2.FsInfo, error) {
	now := time.Now()
	used, err := m.disk.used(now)
	if err != nil {
		return cadvisorapiv2.FsInfo{}, err
	}
	var host unix.Statfs_t
	if err := unix.Statfs(m.spec.Disk, &host); err != nil {
		return cadvisorapiv2.FsInfo{}, err
	}
	capacity := uint64(m.spec.DiskBytes)
	info := cadvisorapiv2.FsInfo{
		Timestamp:  now,
		Device:     "course",
		Mountpoint: "/",
		Capacity:   capacity,
		Usage:      used,
		Available:  min(capacity-min(used, capacity), host.Bavail*uint64(host.Bsize)),
	}
	if host.Files > 0 { // some file systems have no fixed number of them
		info.Inodes, info.InodesFree = &host.Files, &host.Ffree
	}
	klog.V(5).InfoS("Disk of the machine", "used", used, "available", info.Available)
	return info, nil
}
