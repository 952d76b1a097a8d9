package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cadvisorapiv2 "github.com/google/cadvisor/info/v2"
)

func meter(t *testing.T, cgroup string) *usageMeter {
	return &usageMeter{proc: t.TempDir(), cgroups: t.TempDir(), path: cgroup}
}

func read(t *testing.T, m *usageMeter, at time.Time) usage {
	t.Helper()
	got, err := m.read(at)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestUsageFromACgroupOfVersion2(t *testing.T) {
	m := meter(t, "course/a")
	write(t, m.cgroups, "cgroup.controllers", "cpu memory\n")
	write(t, m.cgroups, "course/a/memory.current", "1000\n")
	write(t, m.cgroups, "course/a/memory.stat", "anon 600\nfile 400\ninactive_file 300\n")
	write(t, m.cgroups, "course/a/cpu.stat", "usage_usec 5000000\nuser_usec 1\n")
	now := time.Now()
	first := read(t, m, now)
	if first.memory != 1000 || first.workingSet != 700 || first.rss != 600 || first.cpuNanoseconds != 5e9 || first.cpuNanocores != 0 {
		t.Errorf("%+v", first)
	}
	write(t, m.cgroups, "course/a/cpu.stat", "usage_usec 8000000\n")
	if soon := read(t, m, now.Add(rateInterval/2)); soon != first {
		t.Errorf("measured again too soon: %+v", soon)
	}
	if later := read(t, m, now.Add(2*time.Second)); later.cpuNanocores != 1_500_000_000 {
		t.Errorf("1.5 CPUs are %d", later.cpuNanocores)
	}
}

func TestUsageFromACgroupOfVersion1(t *testing.T) {
	m := meter(t, "course/a")
	write(t, m.cgroups, "memory/course/a/memory.usage_in_bytes", "1000\n")
	write(t, m.cgroups, "memory/course/a/memory.stat", "inactive_file 1\ntotal_inactive_file 1300\ntotal_rss 600\n")
	write(t, m.cgroups, "cpuacct/course/a/cpuacct.usage", "77\n")
	if got := read(t, m, time.Now()); got.memory != 1000 || got.workingSet != 0 || got.rss != 600 || got.cpuNanoseconds != 77 {
		t.Errorf("%+v", got)
	}
	if err := os.RemoveAll(filepath.Join(m.cgroups, "cpuacct")); err != nil {
		t.Fatal(err)
	}
	write(t, m.proc, "9/stat", statLine("x", "1", "5"))
	if got := read(t, m, time.Now().Add(time.Minute)); got.memory != 1000 || got.cpuNanoseconds != 100_000_000 {
		t.Errorf("memory from the cgroup and CPU time from processes: %+v", got)
	}
}

func TestUsageFromProcesses(t *testing.T) {
	m := meter(t, "")
	for _, pid := range []string{"1", "22"} {
		write(t, m.proc, pid+"/stat", statLine("a b", "1", "5")) // 1 + 2 + 3 + 4 hundredths of a second
		write(t, m.proc, pid+"/status", "Name:\ta b\nRssAnon:\t     50 kB\nRssFile:\t 70 kB\n")
	}
	write(t, m.proc, "33/stat", "") // ended while it was looked at
	write(t, m.proc, "meminfo", "MemTotal: 5 kB\n")
	got := read(t, m, time.Now())
	if got.rss != 2*50*1024 || got.workingSet != got.rss || got.cpuNanoseconds != 2*100_000_000 {
		t.Errorf("%+v", got)
	}
}

func TestALostCgroupIsNoStandstill(t *testing.T) {
	m := meter(t, "gone")
	write(t, m.proc, "1/stat", statLine("init", "1", "5"))
	if got := read(t, m, time.Now()); got.cpuNanoseconds == 0 {
		t.Errorf("%+v", got)
	}
}

func TestCPUTimeThatFallsIsNoRate(t *testing.T) {
	m := meter(t, "")
	write(t, m.proc, "1/stat", statLine("init", "900", "5"))
	now := time.Now()
	read(t, m, now)
	write(t, m.proc, "1/stat", statLine("init", "1", "5"))
	if got := read(t, m, now.Add(time.Minute)); got.cpuNanocores != 0 {
		t.Errorf("%+v", got)
	}
}

func TestDiskUsage(t *testing.T) {
	directory := t.TempDir()
	empty, err := diskUsage(directory)
	if err != nil {
		t.Fatal(err)
	}
	write(t, directory, "a/b/file", strings.Repeat("x", 1<<20))
	if err := os.Link(filepath.Join(directory, "a/b/file"), filepath.Join(directory, "again")); err != nil {
		t.Fatal(err)
	}
	used, err := diskUsage(directory)
	if err != nil || used-empty < 1<<20 || used-empty > 1<<20+1<<16 {
		t.Errorf("1 MiB with two names and two directories is %d: %v", used-empty, err)
	}
	if _, err := diskUsage(filepath.Join(directory, "none")); err == nil {
		t.Error("a directory that is not there has a size")
	}
}

func TestDiskUsageIsCountedNowAndThen(t *testing.T) {
	meter, now := &diskMeter{directory: t.TempDir()}, time.Now()
	before, _ := meter.used(now)
	write(t, meter.directory, "file", strings.Repeat("x", 1<<20))
	if soon, _ := meter.used(now.Add(diskInterval / 2)); soon != before {
		t.Errorf("counted again too soon: %d", soon)
	}
	if later, _ := meter.used(now.Add(diskInterval)); later <= before {
		t.Errorf("not counted again: %d", later)
	}
}

func TestAMachineHasItsDeclaredSizeAndRealUsage(t *testing.T) {
	directory := t.TempDir()
	m, err := newMachine(&Spec{Name: "a", CPU: 8, MemoryBytes: 1 << 40, DiskBytes: 1 << 20, Disk: directory})
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.MachineInfo()
	if err != nil || info.NumCores != 8 || info.MemoryCapacity != 1<<40 {
		t.Errorf("%+v %v", info, err)
	}
	write(t, directory, "file", strings.Repeat("x", 2<<20))
	disk, err := m.RootFsInfo()
	if err != nil || disk.Capacity != 1<<20 || disk.Usage < 2<<20 || disk.Available != 0 {
		t.Errorf("more is used than there is: %+v %v", disk, err)
	}
	containers, err := m.ContainerInfoV2(podsCgroup, cadvisorapiv2.RequestOptions{})
	used := containers[podsCgroup].Stats
	if err != nil || len(containers) != 1 || len(used) != 1 || used[0].Memory.WorkingSet == 0 || used[0].Cpu.Usage.Total == 0 {
		t.Errorf("%+v %v", containers, err)
	}
}
