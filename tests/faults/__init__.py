"""Every fault: a kill, a refused call, a power cut, at each call that touches the disk.

    ptrace.py     stops at system calls, lets them be or not
    calls.py      which calls there are, and what they touch
    tracing.py    a command of mirror under the tracer: recorded, killed, refused or held up
    scenes.py     what is done: installs, builds, gc, rollback, pin
    invariants.py what must hold of a root, whenever
    walks.py      each scene through kills, errors and a second install
    disk.py       what a disk may hold after a power cut
    cuts.py       each scene through power cuts
    order.py      what is synced before what, read from a recording
    run.py        all of it, in figures

strace injects faults too, but counts the calls of each thread alone and cannot choose by folder;
here one number names one call.
"""
