"""Where the stages are: each in a process of its own, or all of them in one. Both walk the same lists."""
