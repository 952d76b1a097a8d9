package main

import (
	"context"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/status"
)

const (
	podsCgroup = "/pods" // what the kubelet asks machine.ContainerInfoV2 for; there is no such cgroup
	cpuPeriod  = 100_000 // microseconds, as everywhere in Kubernetes
)

// manager stands for what a kubelet does with cgroups and devices. Upstream's stub is the base: the kubelet makes no
// cgroup (the runtime does, for the memory limits of containers). Ours is what the stub leaves out: the size of the
// disk, GPUs, and an answer to what the limits of a Pod are.
type manager struct {
	cm.ContainerManager
	capacity v1.ResourceList
	gpus     *gpuLedger
	limits   podLimits
	pods     activePods
}

// activePods are those that the kubelet has and that have not ended. All of them are known only when the API server
// has told of them once: until then a Pod that runs may be missing.
type activePods struct {
	list  cm.ActivePodsFunc
	ready config.SourcesReady
}

// uids of the active Pods; false while not all are known.
func (a *activePods) uids() (map[types.UID]bool, bool) {
	if a.list == nil || !a.ready.AllReady() {
		return nil, false
	}
	uids := map[types.UID]bool{}
	for _, pod := range a.list() {
		uids[pod.UID] = true
	}
	return uids, true
}

func newManager(spec *Spec) (*manager, error) {
	extended := v1.ResourceList{}
	for name, count := range spec.Extended {
		extended[v1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	disk := *resource.NewQuantity(spec.DiskBytes, resource.BinarySI)
	gpus, err := newGPULedger(filepath.Join(spec.Root, "gpus.json"), int(spec.Extended[gpuResource]), spec.GPUs)
	if err != nil {
		return nil, err
	}
	return &manager{
		ContainerManager: cm.NewStubContainerManagerWithDevicePluginResource(extended),
		capacity:         v1.ResourceList{v1.ResourceEphemeralStorage: disk},
		gpus:             gpus,
		limits:           podLimits{set: map[types.UID]map[v1.ResourceName]*cm.ResourceConfig{}},
	}, nil
}

// Start only remembers how to ask for the Pods that run.
func (m *manager) Start(ctx context.Context, node *v1.Node, pods cm.ActivePodsFunc, getNode cm.GetNodeFunc,
	ready config.SourcesReady, statuses status.PodStatusProvider, runtime internalapi.RuntimeService, isolation bool) error {
	m.pods = activePods{pods, ready}
	return m.ContainerManager.Start(ctx, node, pods, getNode, ready, statuses, runtime, isolation)
}

func (m *manager) GetCapacity(bool) v1.ResourceList { return m.capacity }

// GetPodCgroupRoot must not be empty: the eviction manager asks for the usage of it every 10 seconds, and complains.
func (m *manager) GetPodCgroupRoot() string { return podsCgroup }

// GetResources gives a container its GPUs as a device plugin would: environment, and of real ones the device files.
// The container's own env can still say otherwise; no further device file comes by that.
func (m *manager) GetResources(_ context.Context, pod *v1.Pod, of *v1.Container) (*container.RunContainerOptions, error) {
	ids, err := m.idsFor(pod, of)
	if err != nil {
		return nil, err
	}
	options := &container.RunContainerOptions{}
	for _, one := range environment(ids, m.gpus.real) {
		options.Envs = append(options.Envs, container.EnvVar{Name: one.Name, Value: one.Value})
	}
	for _, file := range m.gpus.files(ids) {
		options.Devices = append(options.Devices, container.DeviceInfo{PathOnHost: file, PathInContainer: file, Permissions: "rw"})
	}
	return options, nil
}

func (m *manager) idsFor(pod *v1.Pod, of *v1.Container) ([]string, error) {
	if gpusAsked(of) == 0 {
		return nil, nil
	}
	if active, known := m.pods.uids(); known {
		m.gpus.keepOnly(func(pod string) bool { return active[types.UID(pod)] })
	}
	return m.gpus.idsFor(wishOf(pod), of.Name)
}

func (m *manager) NewPodContainerManager() cm.PodContainerManager {
	return &podManager{m.ContainerManager.NewPodContainerManager(), m}
}

// podManager answers for the cgroup of a whole Pod, which does not exist: a resize in place writes its new limits
// there and reads them back, and would never end if they were lost.
type podManager struct {
	cm.PodContainerManager
	manager *manager
}

// podLimits are those that a resize has set, by Pod.
type podLimits struct {
	mutex sync.Mutex
	set   map[types.UID]map[v1.ResourceName]*cm.ResourceConfig
}

func (p *podManager) GetPodCgroupConfig(pod *v1.Pod, name v1.ResourceName) (*cm.ResourceConfig, error) {
	limits := &p.manager.limits
	limits.mutex.Lock()
	defer limits.mutex.Unlock()
	if config := limits.set[pod.UID][name]; config != nil {
		return config, nil
	}
	config := cm.ResourceConfigForPod(pod, true, cpuPeriod, false, kubeletconfig.NoneMemoryReservationPolicy)
	return asRead(config), nil
}

// asRead fills in what a cgroup without limits would say: the kubelet takes for granted that nothing is missing.
func asRead(config *cm.ResourceConfig) *cm.ResourceConfig {
	unlimited, shares, period := int64(-1), uint64(2), uint64(cpuPeriod)
	filled := *config
	if filled.Memory == nil {
		filled.Memory = &unlimited
	}
	if filled.CPUQuota == nil {
		filled.CPUQuota = &unlimited
	}
	if filled.CPUShares == nil {
		filled.CPUShares = &shares
	}
	if filled.CPUPeriod == nil {
		filled.CPUPeriod = &period
	}
	return &filled
}

func (p *podManager) SetPodCgroupConfig(_ klog.Logger, pod *v1.Pod, config *cm.ResourceConfig) error {
	active, known := p.manager.pods.uids()
	limits := &p.manager.limits
	limits.mutex.Lock()
	defer limits.mutex.Unlock()
	for uid := range limits.set {
		if known && !active[uid] {
			delete(limits.set, uid)
		}
	}
	if limits.set[pod.UID] == nil {
		limits.set[pod.UID] = map[v1.ResourceName]*cm.ResourceConfig{}
	}
	if config.Memory != nil {
		limits.set[pod.UID][v1.ResourceMemory] = asRead(config)
	}
	if config.CPUShares != nil || config.CPUQuota != nil {
		limits.set[pod.UID][v1.ResourceCPU] = asRead(config)
	}
	return nil
}
