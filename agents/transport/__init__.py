"""KV transport: frames over several TCP connections, few large system calls, nothing copied twice."""
