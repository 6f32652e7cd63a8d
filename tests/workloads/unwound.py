"""Recursion, sorting with a key, regular expressions and exceptions; for checks/stacks/unwinder.rs."""
import json
import re


def deep(depth):
    if depth == 0:
        raise ValueError("at the bottom")
    return deep(depth - 1) + depth


def work(n):
    try:
        deep(10)
    except ValueError as error:
        text = str(error)
    words = sorted(re.findall(r"\w+", text * 5), key=lambda word: (len(word), word))
    return len(json.dumps({"words": words, "n": [n, n / 3]}))


n = 0
while True:
    n += work(n)
