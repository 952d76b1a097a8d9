package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

// pod has one container for each argument: "name=GPUs"; before the name ">" for an init container, "*" for a sidecar.
func pod(uid string, containers ...string) *v1.Pod {
	always := v1.ContainerRestartPolicyAlways
	made := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
	for _, text := range containers {
		name, gpus, _ := strings.Cut(strings.TrimLeft(text, ">*"), "=")
		container := v1.Container{Name: name}
		container.Resources.Requests = v1.ResourceList{gpuResource: resource.MustParse(gpus)}
		if text[0] == '*' {
			container.RestartPolicy = &always
		}
		if text[0] == '>' || text[0] == '*' {
			made.Spec.InitContainers = append(made.Spec.InitContainers, container)
		} else {
			made.Spec.Containers = append(made.Spec.Containers, container)
		}
	}
	return made
}

type ready bool

func (r ready) AddSource(string) {}
func (r ready) AllReady() bool   { return bool(r) }

// machineWith has 4 GPUs and these active Pods.
func machineWith(t *testing.T, root string, pods *[]*v1.Pod, all ready) *manager {
	t.Helper()
	m, err := newManager(&Spec{Root: root, Extended: map[string]int64{gpuResource: 4}, DiskBytes: 5})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(context.Background(), nil, func() []*v1.Pod { return *pods }, nil, all, nil, nil, true); err != nil {
		t.Fatal(err)
	}
	return m
}

func ids(t *testing.T, m *manager, of *v1.Pod, name string) string {
	t.Helper()
	for _, container := range append(of.Spec.InitContainers, of.Spec.Containers...) {
		if container.Name == name {
			options, err := m.GetResources(context.Background(), of, &container)
			if err != nil {
				return err.Error()
			}
			if len(options.Envs) == 0 {
				return "none"
			}
			if options.Envs[0].Value != options.Envs[1].Value {
				t.Errorf("two answers: %+v", options.Envs)
			}
			return options.Envs[0].Value
		}
	}
	t.Fatalf("there is no container %s", name)
	return ""
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, not %q", got, want)
	}
}

func TestEachPodHasItsOwnGPUs(t *testing.T) {
	a, b, c := pod("a", "x=2"), pod("b", "x=1", "y=1"), pod("c", "x=1")
	pods := []*v1.Pod{a, b}
	m := machineWith(t, t.TempDir(), &pods, true)
	expect(t, ids(t, m, a, "x"), "0,1")
	expect(t, ids(t, m, b, "y"), "3")
	expect(t, ids(t, m, b, "x"), "2")
	expect(t, ids(t, m, a, "x"), "0,1") // its container was restarted
	pods = append(pods, c)
	expect(t, ids(t, m, c, "x"), "the Pod asks for 1 of nvidia.com/gpu, and 0 are free")
	pods = []*v1.Pod{b, c} // a has ended
	expect(t, ids(t, m, c, "x"), "0")
	expect(t, ids(t, m, b, "x"), "2")
	expect(t, ids(t, m, pod("d", "x=0"), "x"), "none")
}

func TestInitContainersBorrowAndSidecarsKeep(t *testing.T) {
	a := pod("a", ">first=2", "*side=1", ">second=3", "x=1", "y=2")
	pods := []*v1.Pod{a}
	m := machineWith(t, t.TempDir(), &pods, true)
	expect(t, ids(t, m, a, "first"), "0,1")
	expect(t, ids(t, m, a, "side"), "0")
	expect(t, ids(t, m, a, "second"), "1,2,3")
	expect(t, ids(t, m, a, "x"), "1")
	expect(t, ids(t, m, a, "y"), "2,3")
}

func TestARestartedKubeletKnowsWhoHasWhat(t *testing.T) {
	a, b, root := pod("a", "x=2"), pod("b", "x=2"), t.TempDir()
	pods := []*v1.Pod{a, b}
	expect(t, ids(t, machineWith(t, root, &pods, true), a, "x"), "0,1")
	none := []*v1.Pod{}
	m := machineWith(t, root, &none, false) // the API server has not told yet which Pods there are
	expect(t, ids(t, m, b, "x"), "2,3")
	expect(t, ids(t, m, a, "x"), "0,1")
}

func TestRealGPUsComeAsEnvironmentAndDeviceFiles(t *testing.T) {
	spec := &Spec{Root: t.TempDir(), Extended: map[string]int64{gpuResource: 2}, GPUs: realOnes(2), DiskBytes: 5}
	m, err := newManager(spec)
	if err != nil {
		t.Fatal(err)
	}
	two, none := pod("a", "x=1", "y=1"), pod("b", "x=0")
	for _, one := range []struct {
		pod       *v1.Pod
		container int
		want      string
	}{
		{two, 1, "GPU-b GPU-b [/dev/nvidia1 rw /dev/nvidiactl rw]"},
		{two, 0, "GPU-a GPU-a [/dev/nvidia0 rw /dev/nvidiactl rw]"},
		{none, 0, "void  []"},
	} {
		options, err := m.GetResources(context.Background(), one.pod, &one.pod.Spec.Containers[one.container])
		if err != nil {
			t.Fatal(err)
		}
		said, files := map[string]string{}, []string{}
		for _, variable := range options.Envs {
			said[variable.Name] = variable.Value
		}
		for _, device := range options.Devices {
			if device.PathOnHost != device.PathInContainer {
				t.Errorf("%+v", device)
			}
			files = append(files, device.PathOnHost+" "+device.Permissions)
		}
		if len(said) != 2 || len(options.Annotations)+len(options.CDIDevices) != 0 {
			t.Errorf("%+v", options)
		}
		expect(t, fmt.Sprint(said["NVIDIA_VISIBLE_DEVICES"], " ", said["CUDA_VISIBLE_DEVICES"], " ", files), one.want)
	}
}

func TestFakeGPUsHaveNoDeviceFiles(t *testing.T) {
	a := pod("a", "x=2")
	pods := []*v1.Pod{a}
	options, err := machineWith(t, t.TempDir(), &pods, true).GetResources(context.Background(), a, &a.Spec.Containers[0])
	if err != nil || len(options.Envs) != 2 || len(options.Devices) != 0 {
		t.Errorf("%+v %v", options, err)
	}
}

func TestAMachineWithFakeAndRealGPUsDoesNotStart(t *testing.T) {
	spec := &Spec{Root: t.TempDir(), Extended: map[string]int64{gpuResource: 4}, GPUs: realOnes(2)}
	if _, err := newManager(spec); err == nil || !strings.Contains(err.Error(), "no fake ones stand among real ones") {
		t.Errorf("%v", err)
	}
}

func TestALedgerThatCannotBeRead(t *testing.T) {
	root := t.TempDir()
	write(t, root, "gpus.json", `{"a": [`)
	if _, err := newManager(&Spec{Root: root}); err == nil || !strings.Contains(err.Error(), filepath.Join(root, "gpus.json")) {
		t.Errorf("%v", err)
	}
}

func TestALedgerThatCannotBeWrittenGivesNothing(t *testing.T) {
	a, root := pod("a", "x=2"), filepath.Join(t.TempDir(), "later")
	pods := []*v1.Pod{a}
	m := machineWith(t, root, &pods, true)
	if got := ids(t, m, a, "x"); !strings.Contains(got, "no such file") {
		t.Error(got)
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, ids(t, m, a, "x"), "0,1")
}

func TestCapacityIsWhatTheSpecSays(t *testing.T) {
	pods := []*v1.Pod{}
	m := machineWith(t, t.TempDir(), &pods, true)
	disk := m.GetCapacity(true)[v1.ResourceEphemeralStorage]
	capacity, allocatable, _ := m.GetDevicePluginResourceCapacity()
	gpus, free := capacity[gpuResource], allocatable[gpuResource]
	if disk.Value() != 5 || gpus.Value() != 4 || free.Value() != 4 {
		t.Errorf("%v %v %v", disk, capacity, allocatable)
	}
}

func TestAResizeReadsBackWhatItWrote(t *testing.T) {
	a, b := pod("a", "x=0"), pod("b", "x=0")
	pods := []*v1.Pod{a, b}
	m := machineWith(t, t.TempDir(), &pods, true)
	limits := m.NewPodContainerManager()
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		read, err := limits.GetPodCgroupConfig(a, name)
		// the kubelet takes for granted that all of these are there
		if err != nil || *read.Memory != -1 || *read.CPUQuota != -1 || *read.CPUPeriod != cpuPeriod || *read.CPUShares < 2 {
			t.Fatalf("%+v %v", read, err)
		}
	}
	memory := int64(1 << 30)
	if err := limits.SetPodCgroupConfig(klog.Background(), a, &cm.ResourceConfig{Memory: &memory}); err != nil {
		t.Fatal(err)
	}
	again := m.NewPodContainerManager() // the kubelet asks for a new one each time
	if read, err := again.GetPodCgroupConfig(a, v1.ResourceMemory); err != nil || *read.Memory != memory {
		t.Errorf("%+v %v", read, err)
	}
	pods = []*v1.Pod{b}
	if err := limits.SetPodCgroupConfig(klog.Background(), b, &cm.ResourceConfig{Memory: &memory}); err != nil {
		t.Fatal(err)
	}
	if len(m.limits.set) != 1 {
		t.Errorf("the limits of a Pod that has ended are kept: %v", m.limits.set)
	}
}
