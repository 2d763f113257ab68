"""The seccomp filter of a sandbox on this machine, as a classic BPF program: what docker's default profile refuses.

Always true: a refused call fails with EPERM. `clone3`, whose flags no filter can see, calls newer than this table and
calls of another architecture (32-bit programs, x32) fail with ENOSYS, as on an older kernel, so that libc falls back.
A filter sees registers only: it never follows a pointer.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

EPERM, ENOSYS = 1, 38
# The newest call that was considered for this table: removexattrat, of Linux 6.13.
NEWEST = 466

# Refused altogether: name, number on x86_64, number on aarch64; `-` where it does not exist.
_REFUSED = """
_sysctl 156 -                 acct 163 89                   add_key 248 217              afs_syscall 183 -
bpf 321 280                   clock_settime 227 112         create_module 174 -          delete_module 176 106
epoll_ctl_old 214 -           epoll_wait_old 215 -          fanotify_init 300 262        finit_module 313 273
fsconfig 431 431              fsmount 432 432               fsopen 430 430               fspick 433 433
get_kernel_syms 177 -         get_mempolicy 239 236         getpmsg 181 -                init_module 175 105
io_uring_enter 426 426        io_uring_register 427 427     io_uring_setup 425 425       ioperm 173 -
iopl 172 -                    kcmp 312 272                  kexec_file_load 320 294      kexec_load 246 104
keyctl 250 219                lookup_dcookie 212 18         mbind 237 235                migrate_pages 256 238
mount 165 40                  mount_setattr 442 442         move_mount 429 429           move_pages 279 239
nfsservctl 180 42             open_by_handle_at 304 265     open_tree 428 428            perf_event_open 298 241
pidfd_getfd 438 438           pivot_root 155 41             process_madvise 440 440      process_vm_readv 310 270
process_vm_writev 311 271     putpmsg 182 -                 query_module 178 -           quotactl 179 60
quotactl_fd 443 443           reboot 169 142                request_key 249 218          security 185 -
set_mempolicy 238 237         set_mempolicy_home_node 450 450                            setdomainname 171 162
sethostname 170 161           setns 308 268                 settimeofday 164 170         swapoff 168 225
swapon 167 224                sysfs 139 -                   syslog 103 116               tuxcall 184 -
umount2 166 39                uselib 134 -                  userfaultfd 323 282          ustat 136 -
vhangup 153 58                vserver 236 -
"""
# Refused for some values of an argument.
_CHECKED = """
clone 56 220   clone3 435 435   ioctl 16 29   personality 135 92   ptrace 101 117   socket 41 198   unshare 272 97
"""

_NEW_NAMESPACES = 0x7E020000
_NEW_TIME_NAMESPACE = 0x80
_ADDRESS_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17}
_TERMINAL_INPUT = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
_ATTACH = {"PTRACE_ATTACH": 16, "PTRACE_SEIZE": 0x4206}
# As in docker's profile: Linux and 32-bit Linux, each also as release 2.6; and the query.
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

_LOAD, _EQUAL, _GREATER, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
_INSTRUCTION = struct.Struct("=HBBI")
_FARTHEST_JUMP = 255


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the kernel names an architecture in a filter, and the column of its numbers in the tables."""

    audit: int
    column: int

    def numbers(self, table: str) -> dict[str, int]:
        words = table.split()
        rows = (words[at : at + 3] for at in range(0, len(words), 3))
        return {row[0]: int(row[self.column]) for row in rows if row[self.column] != "-"}

    @property
    def refused(self) -> dict[str, int]:
        return self.numbers(_REFUSED)

    @property
    def checked(self) -> dict[str, int]:
        return self.numbers(_CHECKED)


ARCHITECTURES = {"x86_64": Architecture(0xC000003E, 1), "aarch64": Architecture(0xC00000B7, 2)}


@dataclass(slots=True)
class _Assembler:
    """Instructions whose jumps name a label. An empty label is the next instruction; all jumps go forward."""

    code: list[tuple[int, int, str, str]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def label(self, name: str) -> None:
        self.labels[name] = len(self.code)

    def load(self, offset: int) -> None:
        self.code.append((_LOAD, offset, "", ""))

    def jump(self, test: int, value: int, yes: str = "", no: str = "") -> None:
        self.code.append((test, value, yes, no))

    def returns(self, action: int) -> None:
        self.code.append((_RETURN, action, "", ""))

    def assemble(self) -> bytes:
        return b"".join(self._encoded())

    def _encoded(self) -> Iterator[bytes]:
        for at, (operation, value, *targets) in enumerate(self.code):
            yes, no = (self.labels[name] - at - 1 if name else 0 for name in targets)
            if not (0 <= yes <= _FARTHEST_JUMP and 0 <= no <= _FARTHEST_JUMP):
                raise AssertionError(f"a jump of instruction {at} goes too far")
            yield _INSTRUCTION.pack(operation, yes, no, value)


@cache
def compile_filter(machine: str) -> bytes:
    """The filter for a machine, as `os.uname().machine` names it."""
    architecture = ARCHITECTURES[machine]
    checked = architecture.checked
    program = _Assembler()
    program.load(_ARCHITECTURE)
    program.jump(_EQUAL, architecture.audit, no="unknown")
    program.load(_NUMBER)
    program.jump(_AT_LEAST, _X32, yes="unknown")
    program.jump(_GREATER, NEWEST, yes="unknown")
    program.jump(_EQUAL, checked.pop("clone3"), yes="unknown")
    for name, number in checked.items():
        program.jump(_EQUAL, number, yes=name)
    for number in sorted(architecture.refused.values()):
        program.jump(_EQUAL, number, yes="refuse")
    program.returns(_ALLOW)
    _check_bits(program, "clone", 0, _NEW_NAMESPACES)
    _check_bits(program, "unshare", 0, _NEW_NAMESPACES | _NEW_TIME_NAMESPACE)
    _check_values(program, "ioctl", 1, refused=list(_TERMINAL_INPUT.values()))
    _check_values(program, "ptrace", 0, refused=list(_ATTACH.values()))
    _check_values(program, "socket", 0, allowed=list(_ADDRESS_FAMILIES.values()))
    _check_values(program, "personality", 0, allowed=_PERSONALITIES)
    for label, action in (("refuse", _ERROR | EPERM), ("unknown", _ERROR | ENOSYS), ("allow", _ALLOW)):
        program.label(label)
        program.returns(action)
    return program.assemble()


def _check_bits(program: _Assembler, name: str, argument: int, refused: int) -> None:
    program.label(name)
    program.load(_ARGUMENTS + 8 * argument)
    program.jump(_ANY_BIT, refused, yes="refuse", no="allow")


def _check_values(
    program: _Assembler, name: str, argument: int, *, allowed: Sequence[int] = (), refused: Sequence[int] = ()
) -> None:
    """Compare the lower half of an argument: the kernel ignores the upper half of these."""
    program.label(name)
    program.load(_ARGUMENTS + 8 * argument)
    values, found, otherwise = (allowed, "allow", "refuse") if allowed else (refused, "refuse", "allow")
    for value in values[:-1]:
        program.jump(_EQUAL, value, yes=found)
    program.jump(_EQUAL, values[-1], yes=found, no=otherwise)
