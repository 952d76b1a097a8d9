package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
)

const gpuResource = "nvidia.com/gpu"

// gpuLedger knows which Pod has which GPUs. A Pod gets all that its containers will ever need with its first
// container, and keeps them until it has ended; the kubelet admits no Pod for which too few are free.
//
// The ledger is a file too, so that a restarted kubelet gives nobody what a running Pod has.
type gpuLedger struct {
	path string
	all  []string

	mutex sync.Mutex
	taken map[types.UID][]string
}

func newGPULedger(path string, count int) (*gpuLedger, error) {
	ledger := &gpuLedger{path: path, taken: map[types.UID][]string{}}
	for id := range count {
		ledger.all = append(ledger.all, strconv.Itoa(id))
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ledger, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &ledger.taken)
	}
	if err != nil {
		return nil, fmt.Errorf("which Pod has which GPU cannot be read: %s: %w", path, err)
	}
	return ledger, nil
}

// keepOnly frees the GPUs of all Pods but these.
func (l *gpuLedger) keepOnly(active map[types.UID]bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for uid := range l.taken {
		if !active[uid] {
			delete(l.taken, uid)
		}
	}
}

// idsFor returns the ids of a container's GPUs; the first container of a Pod takes them for the whole Pod.
func (l *gpuLedger) idsFor(pod *v1.Pod, container *v1.Container) ([]string, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.taken[pod.UID] == nil {
		total := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[gpuResource]
		free := l.free()
		if total.Value() > int64(len(free)) {
			return nil, fmt.Errorf("the Pod asks for %d of %s, and %d are free", total.Value(), gpuResource, len(free))
		}
		l.taken[pod.UID] = free[:total.Value()]
		if err := l.write(); err != nil {
			delete(l.taken, pod.UID)
			return nil, err
		}
	}
	first := firstGPU(pod, container.Name)
	return l.taken[pod.UID][first : first+gpusOf(container)], nil
}

func (l *gpuLedger) free() []string {
	free := slices.Clone(l.all)
	for _, ids := range l.taken {
		free = slices.DeleteFunc(free, func(id string) bool { return slices.Contains(ids, id) })
	}
	return free
}

func (l *gpuLedger) write() error {
	text, err := json.Marshal(l.taken)
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(l.path+".new", l.path)
}

// firstGPU is the place of a container's first GPU among those of its Pod. Sidecars (init containers that go on) come
// first, then the other containers. A plain init container has ended before those start, so it borrows theirs.
func firstGPU(pod *v1.Pod, name string) int {
	place := 0
	for _, container := range pod.Spec.InitContainers {
		if container.Name == name {
			return place
		}
		if container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways {
			place += gpusOf(&container)
		}
	}
	for _, container := range pod.Spec.Containers {
		if container.Name == name {
			return place
		}
		place += gpusOf(&container)
	}
	return place
}

func gpusOf(container *v1.Container) int {
	request := container.Resources.Requests[gpuResource]
	return int(request.Value())
}
