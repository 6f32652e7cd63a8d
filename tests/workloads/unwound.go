// Recursion, closures, maps and formatting; for checks/stacks/unwinder.rs.
package main

import (
	"fmt"
	"sort"
	"strings"
)

//go:noinline
func deep(depth int, work func(int) int) int {
	if depth == 0 {
		return work(depth)
	}
	return deep(depth-1, work) + depth
}

func main() {
	sum := 0
	for n := 0; ; n++ {
		sum += deep(20, func(d int) int { return len(fmt.Sprint(d, n, 0.5)) })
		words := strings.Fields("one two three four five six seven")
		sort.Slice(words, func(a, b int) bool { return words[a] < words[b] })
		counts := map[string]int{}
		for _, word := range words {
			counts[word] += sum
		}
	}
}
