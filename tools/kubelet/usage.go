package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// usage is what a machine uses at one moment.
type usage struct {
	at             time.Time
	memory         uint64 // bytes, with the file cache
	workingSet     uint64 // bytes, without that part of the file cache which can be dropped at once
	rss            uint64 // bytes that no file backs
	cpuNanoseconds uint64 // since the machine's boot
	cpuNanocores   uint64 // at present
}

// usageMeter reads the machine's usage from its cgroup or, where it has none, from the processes that it sees: those
// of its own PID namespace.
type usageMeter struct {
	proc    string
	cgroups string
	path    string // below a controller; empty without a cgroup

	mutex sync.Mutex
	last  usage
}

func newUsageMeter(cgroup *string) *usageMeter {
	meter := &usageMeter{proc: "/proc", cgroups: "/sys/fs/cgroup"}
	if cgroup != nil {
		meter.path = *cgroup
	}
	return meter
}

const rateInterval = time.Second // a rate over less than this is mostly noise

func (m *usageMeter) read(now time.Time) (usage, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	elapsed := now.Sub(m.last.at)
	if elapsed < rateInterval {
		return m.last, nil
	}
	current, err := m.measure()
	if err != nil {
		return usage{}, err
	}
	current.at = now
	// without a cgroup the sum is a little smaller after a process ended that nobody has waited for yet
	if !m.last.at.IsZero() && current.cpuNanoseconds >= m.last.cpuNanoseconds {
		current.cpuNanocores = uint64(float64(current.cpuNanoseconds-m.last.cpuNanoseconds) / elapsed.Seconds())
	}
	m.last = current
	return current, nil
}

func (m *usageMeter) measure() (usage, error) {
	if m.path != "" {
		if current, err := m.fromCgroup(); err == nil {
			return current, nil
		}
	}
	return m.fromProcesses()
}

func (m *usageMeter) fromCgroup() (usage, error) {
	if _, err := os.Stat(filepath.Join(m.cgroups, "cgroup.controllers")); err == nil {
		return cgroupV2(filepath.Join(m.cgroups, m.path))
	}
	current, err := cgroupV1Memory(filepath.Join(m.cgroups, "memory", m.path))
	if err != nil {
		return current, err
	}
	if current.cpuNanoseconds, err = readNumber(filepath.Join(m.cgroups, "cpuacct", m.path, "cpuacct.usage")); err == nil {
		return current, nil
	}
	processes, err := m.fromProcesses() // the course needs the controller of memory, but not that of CPU time
	current.cpuNanoseconds = processes.cpuNanoseconds
	return current, err
}

func cgroupV2(directory string) (current usage, err error) {
	if current.memory, err = readNumber(filepath.Join(directory, "memory.current")); err != nil {
		return current, err
	}
	memory, err := readTable(filepath.Join(directory, "memory.stat"))
	if err != nil {
		return current, err
	}
	cpu, err := readTable(filepath.Join(directory, "cpu.stat"))
	current.workingSet = current.memory - min(memory["inactive_file"], current.memory)
	current.rss = memory["anon"]
	current.cpuNanoseconds = cpu["usage_usec"] * 1000
	return current, err
}

func cgroupV1Memory(directory string) (current usage, err error) {
	if current.memory, err = readNumber(filepath.Join(directory, "memory.usage_in_bytes")); err != nil {
		return current, err
	}
	memory, err := readTable(filepath.Join(directory, "memory.stat"))
	current.workingSet = current.memory - min(memory["total_inactive_file"], current.memory)
	current.rss = memory["total_rss"]
	return current, err
}

// fromProcesses adds up all processes. Memory that several share is left out, because no process alone can tell
// whose it is: that makes the sum too small by what lies in /dev/shm, and never too large.
func (m *usageMeter) fromProcesses() (current usage, err error) {
	entries, err := os.ReadDir(m.proc)
	if err != nil {
		return current, err
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		directory := filepath.Join(m.proc, entry.Name())
		stat, err := os.ReadFile(filepath.Join(directory, "stat"))
		if err != nil {
			continue // it has ended since
		}
		fields, err := statFields(string(stat))
		if err != nil {
			continue
		}
		// a process that has ended counts with the one that waited for it, so that the sum does not fall
		for _, index := range []int{userTime, systemTime, childrenUserTime, childrenSystemTime} {
			ticks, _ := strconv.ParseUint(fields[index], 10, 64)
			current.cpuNanoseconds += ticks * uint64(time.Second) / ticksPerSecond
		}
		status, err := readTable(filepath.Join(directory, "status"))
		if err == nil {
			current.rss += status["RssAnon:"] * 1024
		}
	}
	current.memory, current.workingSet = current.rss, current.rss
	return current, nil
}

func readNumber(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// readTable reads lines of a name and a number; others are passed over.
func readTable(path string) (map[string]uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	table := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 {
			if number, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
				table[fields[0]] = number
			}
		}
	}
	return table, nil
}

const diskInterval = time.Minute // as often as the kubelet itself counts the volumes of Pods

// diskMeter adds up what lies in a directory, as `du -x` does.
type diskMeter struct {
	directory string

	mutex sync.Mutex
	at    time.Time
	bytes uint64
}

func (m *diskMeter) used(now time.Time) (uint64, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if now.Sub(m.at) < diskInterval {
		return m.bytes, nil
	}
	bytes, err := diskUsage(m.directory)
	if err != nil {
		return 0, err
	}
	m.at, m.bytes = now, bytes
	return bytes, nil
}

// diskUsage leaves out what is mounted below the directory, and counts a file with several names once.
func diskUsage(directory string) (bytes uint64, err error) {
	var top syscall.Stat_t
	if err := syscall.Lstat(directory, &top); err != nil {
		return 0, err
	}
	seen := map[uint64]bool{}
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil // removed since, or a container's own
		}
		if err != nil {
			return err
		}
		var file syscall.Stat_t
		if err := syscall.Lstat(path, &file); err != nil {
			return nil
		}
		if file.Dev != top.Dev {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.IsDir() && file.Nlink > 1 {
			if seen[file.Ino] {
				return nil
			}
			seen[file.Ino] = true
		}
		bytes += uint64(file.Blocks) * 512
		return nil
	})
	return bytes, err
}
