// Allocates blocks of a kilobyte for a second, keeps every other one, prints its own sums, and
// lives on for so many seconds as are its argument; for checks/tracing/go_heap.rs. It asks for its memory profile, so that the runtime keeps one.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"time"
)

const (
	blockBytes = 1024
	blocks     = 100_000
	rate       = 8192
)

var kept [][]byte

//go:noinline
func keeps() { kept = append(kept, make([]byte, blockBytes)) }

//go:noinline
func drops() { sink = make([]byte, blockBytes) }

var sink []byte

func main() {
	runtime.MemProfileRate = rate
	kept = make([][]byte, 0, blocks)
	for turn := 0; turn < 10; turn++ {
		for n := 0; n < blocks/10; n++ {
			keeps()
			drops()
		}
		time.Sleep(100 * time.Millisecond)
	}
	sink = nil
	// The profile is as of the last but one collection.
	for n := 0; n < 3; n++ {
		runtime.GC()
	}
	fmt.Println("ALLOCATED", blocks*blockBytes, "RATE", rate, "BLOCK", blockBytes)
	rest, _ := time.ParseDuration(os.Args[1] + "s")
	time.Sleep(rest)
	_ = pprof.Lookup("heap").WriteTo(io.Discard, 1)
	runtime.KeepAlive(kept)
}
