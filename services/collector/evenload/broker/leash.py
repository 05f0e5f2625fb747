"""Tie a program to the life of its owner, then become it: `python leash.py OWNER_PID PIPE_FD PROGRAM ARGS...`.

On Linux the kernel does it: PR_SET_PDEATHSIG survives exec and kills this process when the *thread* that started it
ends (which is why `child.py` starts it from a thread that lives exactly as long). Elsewhere PIPE_FD (>= 0) is the read
end of a pipe that only the owner writes to; a forked guard waits for its end and kills the program.

A script of its own rather than a `preexec_fn`: running Python between fork and exec in a process with threads can
deadlock. It is run with `-I -S`, so it must import nothing but the standard library.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _ask_kernel(owner: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != owner:  # it ended before the request was in place
        sys.exit("the owner has ended already")


def _fork_guard(pipe: int) -> None:
    program = os.getpid()
    if os.fork():
        os.close(pipe)
        return
    os.closerange(0, pipe)
    os.closerange(pipe + 1, 1024)  # above all the lock of the data folder, which must go with the program
    while os.read(pipe, 1):
        pass
    if os.getppid() == program:
        os.kill(program, signal.SIGKILL)
    os._exit(0)


def main(owner: int, pipe: int, program: list[str]) -> None:
    """Arrange to be killed with the owner, then exec."""
    if pipe >= 0:
        _fork_guard(pipe)
    else:
        _ask_kernel(owner)
    os.execv(program[0], program)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
