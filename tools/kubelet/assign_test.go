package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// allocator is what is tested: the functions of assign.go, or a broken one among them.
type allocator struct {
	assign  func(all []string, taken shares, of wish) (shares, error)
	only    func(taken shares, active func(string) bool) shares
	share   func(of wish, ids []string, name string) ([]string, error)
	restart func(taken shares) shares // what a restarted kubelet reads of what was written
}

func ours() allocator { return allocator{assign, shares.only, wish.share, fromDisk} }

func fromDisk(taken shares) (read shares) {
	text, err := json.Marshal(taken)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		panic(err)
	}
	return read
}

// podOf has one container for each number of GPUs.
func podOf(uid string, gpus ...int) wish {
	made := wish{pod: uid}
	for i, count := range gpus {
		made.total += count
		made.containers = append(made.containers, ask{strconv.Itoa(i), count, false})
	}
	return made
}

// state is one moment: how many containers of each Pod have begun (ended: the Pod has), and who has what.
type state struct {
	begun [3]int
	taken shares
}

const ended = -1

func (s state) key() string { return fmt.Sprint(s.begun, s.taken) } // fmt sorts the keys of a map

// explore goes through everything that can happen to these Pods: any container that is next begins, any Pod that has
// begun ends, the kubelet restarts; in every order. It returns what is wrong at the first moment where something is.
func explore(a allocator, all []string, pods []wish) error {
	seen, open := map[string]bool{}, []state{{taken: shares{}}}
	for len(open) > 0 {
		now := open[len(open)-1]
		open = open[:len(open)-1]
		if seen[now.key()] {
			continue
		}
		seen[now.key()] = true
		if again := a.restart(now.taken); !same(again, now.taken) {
			return fmt.Errorf("%v: a restart makes of it %v", now, again)
		}
		for i, pod := range pods {
			for _, step := range []func(allocator, []string, []wish, int, state) (state, error){begin, end} {
				before := now.key()
				next, err := step(a, all, pods, i, now)
				if err == nil && now.key() != before {
					err = fmt.Errorf("what was given has changed to %v", now)
				}
				if err == nil {
					err = sound(all, pods, next)
				}
				if err != nil {
					return fmt.Errorf("%v of %v, Pod %s: %w", before, pods, pod.pod, err)
				}
				open = append(open, next)
			}
		}
	}
	return nil
}

// begin starts a Pod's next container. It is said here once more, in other words, who must get something.
func begin(a allocator, all []string, pods []wish, i int, now state) (state, error) {
	pod, number := pods[i], now.begun[i]
	if number == ended || number == len(pod.containers) {
		return now, nil
	}
	next := now
	next.begun[i]++
	container := pod.containers[number]
	if container.gpus == 0 { // then nobody asks
		return next, nil
	}
	free := len(all)
	for _, other := range pods {
		if _, has := now.taken[other.pod]; has {
			free -= other.total
		}
	}
	held, has := now.taken[pod.pod]
	after, err := a.assign(all, now.taken, pod)
	if refused, must := err != nil, !has && pod.total > free; refused != must {
		return now, fmt.Errorf("it asks for %d, %d are free, and the answer is: %v %v", pod.total, free, after, err)
	}
	if err != nil {
		return now, nil // it will ask again
	}
	if has && !slices.Equal(after[pod.pod], held) {
		return now, fmt.Errorf("it had %v, and now has %v", held, after[pod.pod])
	}
	if !same(without(after, pod.pod), without(now.taken, pod.pod)) {
		return now, fmt.Errorf("others have something else now: %v", after)
	}
	next.taken = after
	return next, shared(a, pod, after[pod.pod])
}

// end is what frees the GPUs of a Pod.
func end(a allocator, _ []string, pods []wish, i int, now state) (state, error) {
	if now.begun[i] <= 0 {
		return now, nil
	}
	next := now
	next.begun[i] = ended
	active := func(uid string) bool {
		at := slices.IndexFunc(pods, func(pod wish) bool { return pod.pod == uid })
		return next.begun[at] != ended
	}
	next.taken = a.only(now.taken, active)
	if !same(next.taken, without(now.taken, pods[i].pod)) {
		return now, fmt.Errorf("after its end: %v", next.taken)
	}
	return next, nil
}

// sound says whether every Pod has as many whole GPUs of the machine as it asks for, and none is of two Pods.
func sound(all []string, pods []wish, now state) error {
	owner := map[string]string{}
	for i, pod := range pods {
		ids, has := now.taken[pod.pod]
		if has && (now.begun[i] <= 0 || len(ids) != pod.total) {
			return fmt.Errorf("%s asks for %d, began %d containers, and has %v", pod.pod, pod.total, now.begun[i], ids)
		}
		for _, id := range ids {
			if owner[id] != "" || !slices.Contains(all, id) {
				return fmt.Errorf("%s of %s is also of %q, or of no machine", id, pod.pod, owner[id])
			}
			owner[id] = pod.pod
		}
	}
	if err := now.taken.check(all); err != nil {
		return fmt.Errorf("the check refuses what is sound: %w", err)
	}
	return nil
}

// shared says whether each container gets as many as it asks for of its Pod's, and none that another has meanwhile.
func shared(a allocator, of wish, ids []string) error {
	has := make([][]string, len(of.containers))
	for i, container := range of.containers {
		var err error
		if has[i], err = a.share(of, ids, container.name); err != nil || len(has[i]) != container.gpus {
			return fmt.Errorf("container %d gets %v of %v: %v", i, has[i], ids, err)
		}
		for _, id := range has[i] {
			if !slices.Contains(ids, id) {
				return fmt.Errorf("container %d gets %s, which is not its Pod's", i, id)
			}
			for j := range i {
				if !of.containers[j].passes && slices.Contains(has[j], id) {
					return fmt.Errorf("containers %d and %d run at the same time, and both have %s", j, i, id)
				}
			}
		}
	}
	return nil
}

func same(one, other shares) bool { return maps.EqualFunc(one, other, slices.Equal) }

func without(taken shares, pod string) shares {
	left := maps.Clone(taken)
	delete(left, pod)
	return left
}

func idsOf(count int) (ids []string) {
	for i := range count {
		ids = append(ids, "GPU-"+string(rune('a'+i)))
	}
	return ids
}

// everyCase calls do with each machine of up to 3 GPUs and each 3 Pods of up to 2 containers of up to all GPUs; the
// order of the Pods makes no difference, since they begin and end in every order. It stops at an error.
func everyCase(do func(all []string, pods []wish) error) error {
	for count := range 4 {
		var shapes [][]int
		for first := range count + 1 {
			shapes = append(shapes, []int{first})
			for second := range count + 1 {
				shapes = append(shapes, []int{first, second})
			}
		}
		for a := range shapes {
			for b := range shapes[:a+1] {
				for c := range shapes[:b+1] {
					pods := []wish{podOf("a", shapes[a]...), podOf("b", shapes[b]...), podOf("c", shapes[c]...)}
					if err := do(idsOf(count), pods); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func TestEverySmallCase(t *testing.T) {
	cases := 0
	err := everyCase(func(all []string, pods []wish) error {
		cases++
		return explore(ours(), all, pods)
	})
	if err != nil || cases != 4+56+364+1540 {
		t.Errorf("%d cases: %v", cases, err)
	}
}

// Each of these is wrong in one way that somebody might write.
func TestABrokenAllocatorIsFound(t *testing.T) {
	for name, wrong := range map[string]func(*allocator){
		"two Pods get one GPU": func(a *allocator) {
			a.assign = func(all []string, taken shares, of wish) (shares, error) {
				if taken[of.pod] != nil || of.total > len(taken.free(all)) {
					return assign(all, taken, of)
				}
				after := maps.Clone(taken)
				after[of.pod] = all[:of.total]
				return after, nil
			}
		},
		"what is too little is given": func(a *allocator) {
			a.assign = func(all []string, taken shares, of wish) (shares, error) {
				of.total = min(of.total, len(taken.free(all)))
				return assign(all, taken, of)
			}
		},
		"the last GPU is never given": func(a *allocator) {
			a.assign = func(all []string, taken shares, of wish) (shares, error) {
				return assign(all[:max(len(all)-1, 0)], taken, of)
			}
		},
		"one GPU counts twice": func(a *allocator) {
			a.assign = func(all []string, taken shares, of wish) (shares, error) {
				after, err := assign(all, taken, of)
				if err == nil && len(after[of.pod]) > 1 {
					after[of.pod] = slices.Repeat(after[of.pod][:1], of.total)
				}
				return after, err
			}
		},
		"each container is asked for as a Pod": func(a *allocator) {
			a.assign = func(all []string, taken shares, of wish) (shares, error) {
				return assign(all, without(taken, of.pod), of)
			}
		},
		"another Pod has to make room": func(a *allocator) {
			a.assign = func(all []string, taken shares, of wish) (shares, error) {
				after, err := assign(all, taken, of)
				if err != nil {
					return assign(all, shares{}, of)
				}
				return after, err
			}
		},
		"what is given is changed": func(a *allocator) {
			a.assign = func(all []string, taken shares, of wish) (shares, error) {
				after, err := assign(all, taken, of)
				maps.Copy(taken, after)
				return taken, err
			}
		},
		"nothing is ever free again":  func(a *allocator) { a.only = func(taken shares, _ func(string) bool) shares { return taken } },
		"the end of one Pod is all's": func(a *allocator) { a.only = func(shares, func(string) bool) shares { return shares{} } },
		"those that run lose theirs":  func(a *allocator) { a.only = inverted },
		"a restart forgets":           func(a *allocator) { a.restart = func(shares) shares { return shares{} } },
		"containers have all": func(a *allocator) {
			a.share = func(_ wish, ids []string, _ string) ([]string, error) { return ids, nil }
		},
		"containers have the same ones": func(a *allocator) { a.share = allPass },
	} {
		t.Run(name, func(t *testing.T) {
			broken := ours()
			wrong(&broken)
			if err := everyCase(func(all []string, pods []wish) error { return explore(broken, all, pods) }); err == nil {
				t.Error("nobody noticed")
			}
		})
	}
}

func inverted(taken shares, active func(string) bool) shares {
	return taken.only(func(pod string) bool { return !active(pod) })
}

func allPass(of wish, ids []string, name string) ([]string, error) {
	of.containers = slices.Clone(of.containers)
	for i := range of.containers {
		of.containers[i].passes = true
	}
	return of.share(ids, name)
}

// Init containers and sidecars too: 3 containers of up to 3 GPUs, of each kind in each order that a Pod can have.
func TestContainersOfEveryKindShareWhatTheirPodHas(t *testing.T) {
	cases, mutant := 0, ours()
	mutant.share = func(of wish, ids []string, name string) ([]string, error) {
		of.containers = slices.Clone(of.containers)
		for i := range of.containers {
			of.containers[i].passes = false
		}
		return of.share(ids, name)
	}
	noticed := false
	for _, kinds := range []string{"iim", "ism", "sim", "ssm", "imm", "smm", "mmm"} {
		for number := range 4 * 4 * 4 {
			pod := wish{pod: "a"}
			sidecars := 0
			for i, kind := range kinds {
				gpus := number >> (2 * i) & 3
				pod.containers = append(pod.containers, ask{strconv.Itoa(i), gpus, kind == 'i'})
				pod.total = max(pod.total, sidecars+gpus) // of what runs at that moment
				if kind != 'i' {
					sidecars += gpus
				}
			}
			ids := idsOf(pod.total)
			if err := shared(ours(), pod, ids); err != nil {
				t.Errorf("%s %v: %v", kinds, pod, err)
			}
			noticed = noticed || shared(mutant, pod, ids) != nil
			cases++
		}
	}
	if cases != 7*64 || !noticed {
		t.Errorf("%d cases; an init container that keeps its GPUs is noticed: %t", cases, noticed)
	}
}

func TestAShareThatIsNotThere(t *testing.T) {
	of := podOf("a", 1, 2)
	if _, err := of.share([]string{"x", "y"}, "1"); err == nil || !strings.Contains(err.Error(), "asks for number 3") {
		t.Error(err)
	}
	if _, err := of.share([]string{"x", "y"}, "2"); err == nil || !strings.Contains(err.Error(), "has no container 2") {
		t.Error(err)
	}
}

func TestWhatNoAllocationMayBe(t *testing.T) {
	for want, taken := range map[string]shares{
		"":                           {"a": {"GPU-a"}, "b": {"GPU-b", "GPU-c"}, "c": {}},
		"given twice: to the Pod a,": {"a": {"GPU-a"}, "b": {"GPU-b", "GPU-a"}},
		"given twice: to the Pod b,": {"b": {"GPU-b", "GPU-b"}},
		"not of this machine":        {"b": {"GPU-z"}},
	} {
		err := taken.check(idsOf(3))
		if got := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(got, want) && want != "" {
			t.Errorf("%v: %v", taken, err)
		}
	}
}

func TestFakeAndRealGPUsAreNotMixed(t *testing.T) {
	a, b := gpu{"GPU-a", []string{"/dev/nvidia0"}}, gpu{"GPU-b", []string{"/dev/nvidia1"}}
	for _, one := range []struct {
		count int
		real  []gpu
		want  string
	}{
		{0, nil, ""},
		{2, nil, "0 1"},
		{2, []gpu{b, a}, "GPU-b GPU-a"},
		{4, []gpu{a, b}, "!no fake ones stand among real ones"},
		{1, []gpu{a, b}, "!2 real GPUs and is to show 1"},
		{0, []gpu{a}, "!no fake ones stand among real ones"},
		{2, []gpu{a, a}, "!GPU-a is named twice"},
		{1, []gpu{{"GPU-a", nil}}, "!has an id and device files"},
		{1, []gpu{{"", []string{"/dev/nvidia0"}}}, "!has an id and device files"},
	} {
		gpus, err := gpusOf(one.count, one.real)
		var ids []string
		for _, one := range gpus {
			ids = append(ids, one.ID)
		}
		got := strings.Join(ids, " ")
		if err != nil {
			got = "!" + err.Error()
		}
		if refusal, ok := strings.CutPrefix(one.want, "!"); ok && !strings.Contains(got, refusal) || !ok && got != one.want {
			t.Errorf("%d of %v: %s", one.count, one.real, got)
		}
	}
}

// The same cases are held against helpers/cluster/embedded/gpus.py, which makes this environment where no kubelet is.
func TestTheEnvironmentOfGPUs(t *testing.T) {
	text, err := os.ReadFile("testdata/gpu_environment.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		IDs         []string
		Real        bool
		Environment map[string]string
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 5 {
		t.Fatal(err, cases)
	}
	for _, one := range cases {
		got := map[string]string{}
		for _, variable := range environment(one.IDs, one.Real) {
			got[variable.Name] = variable.Value
		}
		if !maps.Equal(got, one.Environment) {
			t.Errorf("%v: %v", one, got)
		}
	}
}
