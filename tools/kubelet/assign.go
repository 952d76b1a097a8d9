package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Which Pod gets which GPUs is decided here, by functions that remember nothing: ledger.go keeps what they return, and
// gpus.go asks them on behalf of Kubernetes. This file and ledger.go import the standard library only, so that their
// tests, which go through all small cases, take seconds: tests/contract/test_tools.py runs them by the names of their
// files. (They are no package of their own, because a build is kept by the content of the files of this folder.)

const gpuResource = "nvidia.com/gpu"

// gpu is one GPU of a machine.
type gpu struct {
	ID    string   `json:"id"`    // of a real one its UUID; fake ones are 0, 1, …
	Files []string `json:"files"` // device files that a container needs to use it; a fake one has none
}

// gpusOf lists the GPUs of a machine that shows so many: the real ones, or else fake ones.
func gpusOf(count int, real []gpu) ([]gpu, error) {
	if len(real) == 0 {
		var fake []gpu
		for id := range count {
			fake = append(fake, gpu{ID: strconv.Itoa(id)})
		}
		return fake, nil
	}
	if count != len(real) {
		return nil, fmt.Errorf("the machine has %d real GPUs and is to show %d of %s: no fake ones stand among real ones",
			len(real), count, gpuResource)
	}
	for i, one := range real {
		if one.ID == "" || len(one.Files) == 0 {
			return nil, fmt.Errorf("a real GPU has an id and device files, not %q and %q", one.ID, one.Files)
		}
		if slices.ContainsFunc(real[:i], func(other gpu) bool { return other.ID == one.ID }) {
			return nil, fmt.Errorf("the GPU %s is named twice", one.ID)
		}
	}
	return real, nil
}

// shares says which Pod has which GPUs: their ids, by the Pod's UID.
type shares map[string][]string

// wish is what a Pod asks for.
type wish struct {
	pod        string // UID
	total      int    // how many it needs at the moment at which it needs most
	containers []ask  // in the order in which they start
}

// ask is what one container of a Pod asks for.
type ask struct {
	name   string
	gpus   int
	passes bool // it has ended before the next one starts: a plain init container
}

// assign gives a Pod all GPUs that its containers will ever need. It keeps those that it has; else it gets whole ones
// that no other Pod has, or none. What the function is given stays as it is.
func assign(all []string, taken shares, of wish) (shares, error) {
	if taken[of.pod] != nil {
		return taken, nil
	}
	free := taken.free(all)
	if of.total > len(free) {
		return nil, fmt.Errorf("the Pod asks for %d of %s, and %d are free", of.total, gpuResource, len(free))
	}
	after := shares{of.pod: free[:of.total]}
	maps.Copy(after, taken)
	return after, nil
}

func (s shares) free(all []string) []string {
	free := slices.Clone(all)
	for _, ids := range s {
		free = slices.DeleteFunc(free, func(id string) bool { return slices.Contains(ids, id) })
	}
	return free
}

// only is what is left when all other Pods have ended.
func (s shares) only(active func(pod string) bool) shares {
	left := maps.Clone(s)
	maps.DeleteFunc(left, func(pod string, _ []string) bool { return !active(pod) })
	return left
}

// check says what no allocation may be: a GPU of two Pods, or one that the machine does not have.
func (s shares) check(all []string) error {
	owners := map[string]string{}
	for _, pod := range slices.Sorted(maps.Keys(s)) {
		for _, id := range s[pod] {
			if !slices.Contains(all, id) {
				return fmt.Errorf("the Pod %s has the GPU %s, which is not of this machine", pod, id)
			}
			if other, ok := owners[id]; ok {
				return fmt.Errorf("the GPU %s is given twice: to the Pod %s, and to %s", id, other, pod)
			}
			owners[id] = pod
		}
	}
	return nil
}

// share is which of its Pod's GPUs a container has. Sidecars (init containers that go on) come first, then the other
// containers. A plain init container has ended before those start, so it borrows theirs.
func (w wish) share(ids []string, name string) ([]string, error) {
	first := 0
	for _, container := range w.containers {
		after := first + container.gpus
		if container.name == name {
			if after > len(ids) {
				return nil, fmt.Errorf("the Pod has %d GPUs, and its container %s asks for number %d", len(ids), name, after)
			}
			return ids[first:after], nil
		}
		if !container.passes {
			first = after
		}
	}
	return nil, fmt.Errorf("the Pod has no container %s", name)
}

// variable is one of a container's environment.
type variable struct{ Name, Value string }

// environment tells a container which GPUs are its own. Where GPUs are real, one that has none is told so, and sees
// none: by NVIDIA's own words "void" is a container as if there were no GPUs, and of an empty list of devices CUDA
// shows none. Where they are fake, nothing is said to it, as nothing is said on a machine without GPUs.
func environment(ids []string, real bool) []variable {
	if len(ids) > 0 {
		value := strings.Join(ids, ",")
		return []variable{{"NVIDIA_VISIBLE_DEVICES", value}, {"CUDA_VISIBLE_DEVICES", value}}
	}
	if real {
		return []variable{{"NVIDIA_VISIBLE_DEVICES", "void"}, {"CUDA_VISIBLE_DEVICES", ""}}
	}
	return nil
}
